-- Ready queues, merged: the best rows of many of them, best first, and what then becomes of them.
--
-- A queue is of one partition and one route. A few rows of each are read at first, more of those
-- that are taken from. Nothing is written before all has been chosen.

local CHUNK_MIN, CHUNK_MAX = 8, 128

-- Where a partition is in the order of ids, which begin with its number and a brace: 70 before 7.
-- A letter is behind all digits wherever the server is.
local function rank_of(number)
  return number .. 'z'
end

local function number_of_rank(rank)
  return part_of(rank, 1, -2)
end

-- All that a queue has given so far.
local function given_by(queue)
  local ids = queue.given or {n = 0}
  for place = 1, queue.at - 1, 2 do
    ids.n = ids.n + 1
    ids[ids.n] = queue.found[place]
  end
  return ids
end

-- Read the next rows of a queue, more of them each time.
local function fill(queue)
  local chunk = queue.chunk
  local found = call('ZRANGE', queue.key, queue.offset, queue.offset + chunk - 1, 'WITHSCORES')
  queue.ask.examined = queue.ask.examined + #found / 2
  queue.found, queue.at, queue.is_whole = found, 1, #found < 2 * chunk
  queue.offset, queue.chunk = queue.offset + chunk, math.min(chunk * 4, CHUNK_MAX)
end

-- Where the queue is now; nothing if it has no more.
local function refresh(queue)
  if not queue.found[queue.at] and not queue.is_whole then
    queue.given = given_by(queue)
    fill(queue)
  end
  local score = queue.found[queue.at + 1]
  queue.score = score and score + 0
end

-- Begin to read some queues: partitions and names, in turn.
local function read_queues(places, ask)
  local queues = {}
  local chunk = math.max(CHUNK_MIN, math.min(CHUNK_MAX, math.ceil(2 * ask.limit / #places)))
  for place = 1, #places, 2 do
    local scope, name = places[place], places[place + 1]
    local queue = {
      key = scope.base .. ':ready:' .. name, name = name, scope = scope, ask = ask, found = false,
      at = 1, offset = 0, chunk = chunk, is_whole = false, score = false, first = false, given = false,
    }
    fill(queue)
    refresh(queue)
    queue.first = queue.score
    queues[#queues + 1] = queue
  end
  return queues
end

local function goes_last(queue, other)
  local score, best = queue.score, other.score
  if score ~= best then
    return score > best
  end
  local rank, better = queue.scope.rank, other.scope.rank
  if rank ~= better then
    return rank > better
  end
  return queue.found[queue.at] > other.found[other.at]
end

-- These queues and those whose turn it is, as far as they have a row, the one with the best at the
-- end. Sorted by numbers and texts, which costs less than to compare queues.
local function in_turn(turns, queues)
  local scores, ties_of, owners, merged = {}, {}, {}, {}
  for _, some in ipairs({turns, queues}) do
    for _, queue in ipairs(some) do
      local score = queue.score
      if score then
        local ties, tie = ties_of[score], queue.scope.rank .. queue.found[queue.at]
        if not ties then
          ties = {}
          ties_of[score], scores[#scores + 1] = ties, -score
        end
        ties[#ties + 1], owners[tie] = tie, queue
      end
    end
  end
  table.sort(scores)
  for _, score in ipairs(scores) do
    local ties = ties_of[-score]
    table.sort(ties)
    for place = #ties, 1, -1 do
      merged[#merged + 1] = owners[ties[place]]
    end
  end
  return merged
end

-- Put back a queue that has more, behind all that go first.
local function put_back(turns, queue)
  local low, high = 1, #turns + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if goes_last(turns[middle], queue) then
      low = middle + 1
    else
      high = middle
    end
  end
  table.insert(turns, low, queue)
end

-- Whether the next row of a queue is among the best: those of queues that were not read begin with
-- the bound at best.
local function is_within(queue, bound)
  return queue.score and (not bound or queue.score <= bound)
end

-- The next best of these queues, as many as wanted: queues, ids and the keys of their records.
local function pick(turns, wanted, bound)
  local from, ids, keys, count = {}, {}, {}, 0
  while count < wanted and #turns > 0 and is_within(turns[#turns], bound) do
    local queue = table.remove(turns)
    local second, base = turns[#turns], queue.scope.base .. ':x:'
    repeat
      local uuid = queue.found[queue.at]
      count, queue.at = count + 1, queue.at + 2
      from[count], ids[count], keys[count] = queue, uuid, base .. uuid
      refresh(queue)
    until count == wanted or not is_within(queue, bound) or (second and goes_last(queue, second))
    if queue.score then
      put_back(turns, queue)
    end
  end
  return from, ids, keys
end

-- Remove what queues have given, which is how each began, and add what changed at their heads. The
-- hint of a queue that has nothing goes away: here, where the hints are known.
local function shorten(queues, hints, changed)
  local emptied = {}
  for _, queue in ipairs(queues) do
    local after, name = queue.score, '{hint:' .. queue.name .. '}'
    if after and (queue.at > 1 or queue.given) then
      write_portions('ZREM', queue.key, given_by(queue))
    elseif not after and queue.first then
      emptied[#emptied + 1] = queue.key
    end
    if not after and hints ~= '' then
      call('ZREM', hints .. name, partition_of(queue.scope))
    elseif after ~= queue.first or not after then
      note_change(changed, queue.scope, name, after and whole(after) or '')
    end
  end
  for first = 1, #emptied, CELLS_MAX do
    call('UNLINK', unpack(emptied, first, math.min(first + CELLS_MAX - 1, #emptied)))
  end
end
