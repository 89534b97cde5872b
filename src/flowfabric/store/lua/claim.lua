-- Claims: the best rows of some ready queues, copied into leases.
--
-- On one server a claim looks at the hinted partitions itself; in a cluster the caller has looked
-- and asks each partition for its share. A row is taken as the last decision left it: the claim
-- only copies.

local CHUNK_MIN, CHUNK_MAX = 8, 128
local PARTITIONS_AT_ONCE = 16
local PARTITIONS_MAX = 65536

-- Arguments 5 to 12: namespace, limit, worker, token, end of the lease, whether to start, and in
-- 11 how many lanes follow.
local function read_ask(args)
  local ask = {
    namespace = args[5], limit = tonumber(args[6]), worker = args[7], token = args[8],
    until_ms = args[9], is_start = args[10] == '1', now = args[1], lanes = {},
    detail = '{"worker":' .. cjson.encode(args[7]) .. ',"kind":"',
  }
  -- What is the same for every row that is taken.
  ask.cells = {
    'state', 'active', 'lease_token', ask.token, 'lease_until_ms', ask.until_ms,
    'worker', ask.worker, 'updated_ms', ask.now, 'reason', ask.is_start and 'none' or 'granted',
  }
  if ask.is_start then
    for _, cell in ipairs({'attempt_state', 'running_attempt', 'attempt_started_ms', ask.now}) do
      ask.cells[#ask.cells + 1] = cell
    end
  end
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

-- Few rows of each queue are looked at first, more of those that are taken from.
local function fill(queue)
  local past = queue.offset + queue.chunk
  queue.found = redis.call('ZRANGE', queue.key, queue.offset, past - 1, 'WITHSCORES')
  queue.at, queue.offset, queue.chunk = 1, past, math.min(queue.chunk * 4, CHUNK_MAX)
  queue.score = tonumber(queue.found[2])
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

-- The columns that a claim counts on, if the row is ready as its queue says. What only an earlier
-- attempt leaves behind is read if there was one.
local function read_ready(base, uuid)
  local key = base .. ':x:' .. uuid
  local cells = redis.call('HMGET', key, 'state', 'rev', 'epoch', 'due_ms', 'deadline_ms',
    'attempt_left_ms', 'attempt', 'next_kind')
  if not READY[cells[1]] then
    return nil
  end
  local row = {
    state = cells[1], rev = cells[2], epoch = cells[3], due_ms = cells[4] or '',
    deadline_ms = cells[5], left_ms = tonumber(cells[6]), attempt = cells[7], kind = cells[8],
    gone = {},
  }
  if row.attempt or row.epoch or row.kind then
    local more = redis.call('HMGET', key, 'next_attempt', 'started_ms', 'renewed_ms', 'lost',
      'attempt_kind', 'attempt_until_ms')
    row.next_attempt, row.started_ms, row.renewed_ms = more[1], more[2], more[3]
    row.lost, row.attempt_kind, row.attempt_until_ms = more[4], more[5], more[6]
  end
  return row
end

local function queues_of(scopes, ask)
  local queues = {}
  for rank, scope in ipairs(scopes) do
    for _, lane in ipairs(ask.lanes) do
      local name = queue_name(ask.namespace, lane)
      local queue = {
        key = scope.base .. ':ready:' .. name, name = name, lane = lane, scope = scope,
        rank = rank, offset = 0, chunk = CHUNK_MIN,
      }
      fill(queue)
      queue.first = queue.score and whole(queue.score) or ''
      queues[#queues + 1] = queue
    end
  end
  return queues
end

-- Open the partition of a queue that will change; answers a refusal, if it refuses.
local function touch(queue, args)
  local scope = queue.scope
  if not scope.is_open then
    for name, value in pairs(open(scope.base, args)) do
      scope[name] = value
    end
  end
  if scope.queues[queue.name] == nil then
    -- Where nothing is left, somebody said that there is something: that hint goes away.
    scope.queues[queue.name] = queue.first ~= '' and queue.first
  end
  scope.is_touched = true
  return scope.refusal
end

-- The best rows of these partitions; places of rows that are not ready are noted to be removed.
local function choose(scopes, ask, taken, args)
  local queues = queues_of(scopes, ask)
  for _, queue in ipairs(queues) do
    if not queue.score and touch(queue, args) then
      return queue.scope.refusal
    end
  end
  while #taken < ask.limit do
    local queue = best_of(queues)
    if queue == nil then
      return
    end
    if touch(queue, args) then
      return queue.scope.refusal
    end
    local uuid = queue.found[queue.at]
    local row = read_ready(queue.scope.base, uuid)
    if row then
      row.scope, row.uuid, row.lane = queue.scope, uuid, queue.lane
      taken[#taken + 1] = row
    else
      gather(queue.scope.removed, queue.key, uuid)
    end
    advance(queue)
  end
end

local function earlier(first, second)
  return tonumber(second) < tonumber(first) and second or first
end

-- An attempt begins: which one, and how long it may take, was said by the last decision. A column
-- that has its usual value is not kept.
local function begin(ask, row, set, after)
  local gone = row.gone
  after.attempt = row.next_attempt or '0'
  set[#set + 1], set[#set + 2] = 'attempt', after.attempt
  if not row.started_ms then
    set[#set + 1], set[#set + 2] = 'started_ms', ask.now
  end
  if row.kind then
    set[#set + 1], set[#set + 2] = 'attempt_kind', row.kind
  elseif row.attempt_kind then
    gone[#gone + 1] = 'attempt_kind'
  end
  if row.left_ms then
    local limit = whole(tonumber(ask.now) + row.left_ms)
    set[#set + 1], set[#set + 2] = 'attempt_until_ms', limit
    after.due_ms = earlier(after.due_ms, limit)
  elseif row.attempt_until_ms then
    gone[#gone + 1] = 'attempt_until_ms'
  end
  if row.lost then
    gone[#gone + 1] = 'lost'
  end
end

local function take(row, ask)
  local scope, gone, epoch = row.scope, row.gone, (tonumber(row.epoch) or 0) + 1
  local key = scope.base .. ':x:' .. row.uuid
  local after = {
    state = 'active', namespace = ask.namespace, lane = row.lane, attempt = row.attempt,
    epoch = epoch,
    due_ms = row.deadline_ms and earlier(ask.until_ms, row.deadline_ms) or ask.until_ms,
  }
  local set = {'rev', (tonumber(row.rev) or 1) + 1, 'epoch', epoch, unpack(ask.cells)}
  if row.renewed_ms then
    gone[1] = 'renewed_ms'
  end
  if ask.is_start then
    begin(ask, row, set, after)
  end
  set[#set + 1], set[#set + 2] = 'due_ms', after.due_ms
  redis.call('HSET', key, unpack(set))
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
  end
  index(scope, row.uuid, row, after)
  local detail = ask.detail .. (row.kind or 'initial') .. '"}'
  log(scope, row.uuid, ask.is_start and 'claimed' or 'granted', after, detail)
end

-- Write what was chosen; answers the ids of what was taken, by partition.
local function take_all(scopes, ask, taken, hints)
  local changes = {}
  for _, row in ipairs(taken) do
    take(row, ask)
    row.scope.taken = row.scope.taken or {row.scope.number}
    table.insert(row.scope.taken, row.uuid)
  end
  local ids = {}
  for _, scope in ipairs(scopes) do
    if scope.is_touched then
      ids[#ids + 1] = scope.taken
      for _, change in ipairs(close(scope, hints)) do
        changes[#changes + 1] = change
      end
    end
  end
  return {'ok', scopes[1] and scopes[1].at_ms or 0, ids, changes}
end

-- The best of one partition.
register('claim', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask, taken = read_ask(args), {}
  choose({scope}, ask, taken, args)
  return take_all({scope}, ask, taken, args[4])
end)

-- One named row of one partition, if it is ready in one of the lanes.
register('claim_one', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask = read_ask(args)
  local uuid = args[12 + #ask.lanes]
  local cells = redis.call('HMGET', scope.base .. ':x:' .. uuid, 'namespace', 'lane')
  for _, lane in ipairs(ask.lanes) do
    if cells[1] == ask.namespace and cells[2] == lane then
      local row = read_ready(scope.base, uuid)
      watch(scope, ask.namespace, lane)
      if row then
        row.scope, row.uuid, row.lane, scope.is_touched = scope, uuid, lane, true
        return take_all({scope}, ask, {row}, args[4])
      end
    end
  end
  return {'ok', scope.at_ms, {}, {}}
end)

-- The partitions that hints name, some with the best heads of each lane, in the order of their ids.
local function hinted(ask, args, offset)
  local found, seen = {}, {}
  for _, lane in ipairs(ask.lanes) do
    local key = args[4] .. '{hint:' .. queue_name(ask.namespace, lane) .. '}'
    for _, number in ipairs(redis.call('ZRANGE', key, offset, offset + PARTITIONS_AT_ONCE - 1)) do
      if not seen[number] then
        seen[number] = true
        found[#found + 1] = number
      end
    end
  end
  table.sort(found, is_before)
  return found
end

-- The best of all hinted partitions, when all keys are on one server.
-- Differs: the declared key is where the hints are, and partitions are found through them.
register('claim_hinted', function(keys, args)
  local first = open(keys[1], args)
  if first.refusal then
    return first.refusal
  end
  local ask, taken, seen, known = read_ask(args), {}, {}, {}
  for offset = 0, PARTITIONS_MAX, PARTITIONS_AT_ONCE do
    local scopes = {}
    local numbers = hinted(ask, args, offset)
    for _, number in ipairs(numbers) do
      if not known[number] then
        known[number] = {base = args[4] .. '{fp:' .. number .. '}', number = number}
        scopes[#scopes + 1], seen[#seen + 1] = known[number], known[number]
      end
    end
    local refusal = choose(scopes, ask, taken, args)
    if refusal then
      return refusal
    end
    if #numbers == 0 or #taken >= ask.limit then
      break
    end
  end
  local answer = take_all(seen, ask, taken, args[4])
  answer[2] = first.at_ms
  return answer
end)
