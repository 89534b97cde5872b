-- Claims: the best rows of some ready queues, copied into leases.
--
-- On one server a claim looks at the hinted partitions itself; in a cluster the caller has looked
-- and asks each partition for its share. A row is taken as the last decision left it: the claim
-- only copies.

local CHUNK = 64
local PARTITIONS_AT_ONCE = 16
local PAYLOAD_BYTES_MAX = 16 * 1024 * 1024

-- Arguments 5 to 12: namespace, limit, worker, token, end of the lease, whether to start, and in
-- 11 how many lanes follow.
local function read_ask(args)
  local ask = {
    namespace = args[5], limit = tonumber(args[6]), worker = args[7], token = args[8],
    until_ms = args[9], is_start = args[10] == '1', now = args[1], lanes = {},
    detail = '{"worker":' .. cjson.encode(args[7]) .. ',"kind":"',
  }
  for number = 1, tonumber(args[11]) do
    ask.lanes[number] = args[11 + number]
  end
  return ask
end

-- Text order of two partition numbers within an id, where a brace follows: 70 comes before 7.
local function is_before(first, second)
  for position = 1, math.max(#first, #second) + 1 do
    local a, b = string.byte(first .. '}', position), string.byte(second .. '}', position)
    if a ~= b then
      return (a or 0) < (b or 0)
    end
  end
  return false
end

local function fill(queue)
  local found = redis.call('ZRANGE', queue.key, queue.offset, queue.offset + CHUNK - 1, 'WITHSCORES')
  queue.found, queue.at, queue.offset = found, 1, queue.offset + CHUNK
  queue.score = tonumber(found[2])
end

local function advance(queue)
  queue.at = queue.at + 2
  if queue.at > #queue.found then
    fill(queue)
  else
    queue.score = tonumber(queue.found[queue.at + 1])
  end
end

local function goes_first(queue, best)
  if queue.score ~= best.score then
    return queue.score < best.score
  end
  if queue.rank ~= best.rank then
    return queue.rank < best.rank
  end
  return queue.found[queue.at] < best.found[best.at]
end

local function best_of(queues)
  local best
  for _, queue in ipairs(queues) do
    if queue.score and (best == nil or goes_first(queue, best)) then
      best = queue
    end
  end
  return best
end

-- A head as it is and by its columns, if its place in the queue is true.
local function read_ready(base, uuid, ask, lane)
  local flat, cells = redis.call('HGETALL', base .. ':x:' .. uuid), {}
  for position = 1, #flat, 2 do
    cells[flat[position]] = flat[position + 1]
  end
  if READY[cells.state] and cells.namespace == ask.namespace and cells.lane == lane then
    return cells, flat
  end
  return nil
end

-- The best rows of these partitions; rows that are no longer ready are noted to be forgotten.
local function choose(scopes, ask, taken, stale)
  local queues = {}
  for rank, scope in ipairs(scopes) do
    for _, lane in ipairs(ask.lanes) do
      local key = scope.base .. ':ready:' .. queue_name(ask.namespace, lane)
      local queue = {key = key, rank = rank, scope = scope, lane = lane, offset = 0}
      fill(queue)
      if queue.score then
        watch(scope, ask.namespace, lane)
        queues[#queues + 1] = queue
      else
        -- Somebody said that there is something: that hint goes away.
        scope.queues[queue_name(ask.namespace, lane)] = false
      end
    end
  end
  while #taken < ask.limit and taken.bytes < PAYLOAD_BYTES_MAX do
    local queue = best_of(queues)
    if queue == nil then
      return
    end
    local uuid = queue.found[queue.at]
    local cells, flat = read_ready(queue.scope.base, uuid, ask, queue.lane)
    if cells then
      local payload = redis.call('GET', queue.scope.base .. ':payload:' .. uuid) or ''
      taken.bytes = taken.bytes + #payload
      taken[#taken + 1] = {
        scope = queue.scope, uuid = uuid, cells = cells, flat = flat, payload = payload,
      }
    else
      stale[#stale + 1] = {queue.key, uuid}
    end
    advance(queue)
  end
end

local function earliest(...)
  local best
  for _, text in ipairs({...}) do
    if text ~= '' and (best == nil or tonumber(text) < tonumber(best)) then
      best = text
    end
  end
  return best
end

-- The columns that every lease sets, and those of an attempt that begins: which one, and how long
-- it may take, was said by the last decision. A grant begins none, so nothing else changes.
-- Answers what is set and what goes back to what is usual, and the row as indexes see it.
local function leased(ask, cells)
  local after = {
    state = 'active', namespace = cells.namespace, lane = cells.lane, attempt = cells.attempt,
    epoch = whole((tonumber(cells.epoch) or 0) + 1),
    due_ms = earliest(ask.until_ms, cells.deadline_ms or ''),
  }
  local set = {
    'state', 'active', 'rev', whole((tonumber(cells.rev) or 1) + 1), 'epoch', after.epoch,
    'lease_token', ask.token, 'lease_until_ms', ask.until_ms, 'worker', ask.worker,
    'updated_ms', ask.now, 'reason', ask.is_start and 'none' or 'granted',
  }
  local gone = {}
  local function put(name, value, usual)
    if value ~= usual then
      set[#set + 1] = name
      set[#set + 1] = value
    elseif cells[name] then
      gone[#gone + 1] = name
    end
  end
  put('renewed_ms', '', '')
  if ask.is_start then
    local left = tonumber(cells.attempt_left_ms)
    local limit = left and whole(tonumber(ask.now) + left) or ''
    after.attempt, after.due_ms = cells.next_attempt or '0', earliest(after.due_ms, limit)
    put('attempt_state', 'running_attempt')
    put('attempt', after.attempt)
    put('attempt_kind', cells.next_kind or 'initial', 'initial')
    put('attempt_started_ms', ask.now)
    put('attempt_until_ms', limit, '')
    put('started_ms', cells.started_ms or ask.now)
    put('lost', 'none', 'none')
  end
  put('due_ms', after.due_ms)
  return set, gone, after
end

local function take(row, ask)
  local scope, cells = row.scope, row.cells
  local key = scope.base .. ':x:' .. row.uuid
  local set, gone, after = leased(ask, cells)
  redis.call('HSET', key, unpack(set))
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
  end
  index(scope, row.uuid, {state = cells.state, due_ms = cells.due_ms or ''}, after)
  local detail = ask.detail .. (cells.next_kind or 'initial') .. '"}'
  log(scope, row.uuid, ask.is_start and 'claimed' or 'granted', after, detail)
  return {string.match(scope.base, '{fp:(%d+)}'), row.uuid, row.flat, row.payload}
end

local function take_all(scopes, ask, taken, stale, hints)
  local leases, changes = {}, {}
  for _, entry in ipairs(stale) do
    redis.call('ZREM', entry[1], entry[2])
  end
  for number, row in ipairs(taken) do
    leases[number] = take(row, ask)
  end
  for _, scope in ipairs(scopes) do
    for _, change in ipairs(close(scope, hints)) do
      changes[#changes + 1] = change
    end
  end
  return {'ok', scopes[1] and scopes[1].at_ms or 0, leases, changes}
end

-- The best of one partition.
register('claim', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask, taken, stale = read_ask(args), {bytes = 0}, {}
  choose({scope}, ask, taken, stale)
  return take_all({scope}, ask, taken, stale, args[4])
end)

-- One named row of one partition, if it is ready in one of the lanes.
register('claim_one', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask = read_ask(args)
  local uuid = args[12 + #ask.lanes]
  for _, lane in ipairs(ask.lanes) do
    local cells, flat = read_ready(scope.base, uuid, ask, lane)
    if cells then
      watch(scope, ask.namespace, lane)
      local payload = redis.call('GET', scope.base .. ':payload:' .. uuid) or ''
      local row = {scope = scope, uuid = uuid, cells = cells, flat = flat, payload = payload}
      return take_all({scope}, ask, {row}, {}, args[4])
    end
  end
  return {'ok', scope.at_ms, {}, {}}
end)

-- The partitions that hints name, those with the best heads first, each opened once.
local function hinted(ask, args, offset)
  local found, seen = {}, {}
  for _, lane in ipairs(ask.lanes) do
    local key = args[4] .. '{hint:' .. queue_name(ask.namespace, lane) .. '}'
    local last = offset + PARTITIONS_AT_ONCE - 1
    local members = redis.call('ZRANGE', key, offset, last, 'WITHSCORES')
    for position = 1, #members, 2 do
      local number, score = members[position], tonumber(members[position + 1])
      if seen[number] == nil then
        seen[number] = {number = number, score = score}
        found[#found + 1] = seen[number]
      end
      seen[number].score = math.min(seen[number].score, score)
    end
  end
  table.sort(found, function(a, b) return a.score < b.score end)
  local best = {}
  for position = 1, math.min(#found, PARTITIONS_AT_ONCE * #ask.lanes) do
    best[position] = found[position]
  end
  table.sort(best, function(a, b) return is_before(a.number, b.number) end)
  return best
end

-- The best of all hinted partitions, when all keys are on one server.
-- Differs: the declared key is where the hints are, and partitions are found through them.
register('claim_hinted', function(keys, args)
  local first = open(keys[1], args)
  if first.refusal then
    return first.refusal
  end
  local ask, taken, stale, opened, known = read_ask(args), {bytes = 0}, {}, {}, {}
  local offset = 0
  while #taken < ask.limit and taken.bytes < PAYLOAD_BYTES_MAX do
    local scopes = {}
    local partitions = hinted(ask, args, offset)
    for _, partition in ipairs(partitions) do
      if not known[partition.number] then
        local scope = open(args[4] .. '{fp:' .. partition.number .. '}', args)
        if scope.refusal then
          return scope.refusal
        end
        known[partition.number] = true
        scopes[#scopes + 1] = scope
        opened[#opened + 1] = scope
      end
    end
    if #partitions == 0 then
      break
    end
    choose(scopes, ask, taken, stale)
    offset = offset + PARTITIONS_AT_ONCE
  end
  local answer = take_all(opened, ask, taken, stale, args[4])
  answer[2] = first.at_ms
  return answer
end)
