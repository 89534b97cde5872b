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
    until_ms = tonumber(args[9]), is_start = args[10] == '1', now_ms = tonumber(args[1]),
    lanes = {}, detail = '{"worker":' .. cjson.encode(args[7]) .. ',"kind":"',
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

-- Some rows of each queue are read first, more of those that are taken from.
local function fill(queue)
  local past = queue.offset + queue.chunk
  local found, ids = redis.call('ZRANGE', queue.key, queue.offset, past - 1, 'WITHSCORES'), {}
  for place = 1, #found, 2 do
    ids[#ids + 1] = found[place]
  end
  queue.found, queue.at, queue.offset = found, 1, past
  queue.texts = read_texts(queue.scope.base, ids)
  queue.chunk = math.min(queue.chunk * 4, CHUNK_MAX)
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

local function queues_of(scopes, ask)
  local queues, share = {}, ask.limit / (#scopes * #ask.lanes)
  local chunk = math.max(CHUNK_MIN, math.min(CHUNK_MAX, math.ceil(share)))
  for rank, scope in ipairs(scopes) do
    for _, lane in ipairs(ask.lanes) do
      local name = queue_name(ask.namespace, lane)
      local queue = {
        key = scope.base .. ':ready:' .. name, name = name, scope = scope,
        rank = rank, offset = 0, chunk = chunk,
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
    local text = queue.texts[(queue.at + 1) / 2]
    local head = text and decode(text)
    if head and READY[head.state] then
      taken[#taken + 1] = {scope = queue.scope, uuid = uuid, head = head, queue = queue.key}
    else
      gather(queue.scope.removed, queue.key, uuid)
    end
    if #taken < ask.limit then
      advance(queue)
    end
  end
end

-- An attempt begins: which one, and how long it may take, was said by the last decision.
local function begin(ask, head)
  head.attempt, head.attempt_kind = head.next_attempt or 0, head.next_kind
  head.attempt_state, head.attempt_started_ms = 'running_attempt', ask.now_ms
  head.started_ms, head.lost = head.started_ms or ask.now_ms, nil
  local left_ms = tonumber(head.attempt_left_ms)
  head.attempt_until_ms = left_ms and ask.now_ms + left_ms
  head.due_ms = math.min(head.due_ms, head.attempt_until_ms or head.due_ms)
end

local function take(row, ask)
  local scope, head = row.scope, row.head
  local due_ms = head.due_ms
  head.rev, head.epoch = (tonumber(head.rev) or 1) + 1, (tonumber(head.epoch) or 0) + 1
  head.state, head.reason = 'active', not ask.is_start and 'granted' or 'none'
  head.lease_token, head.lease_until_ms, head.worker = ask.token, ask.until_ms, ask.worker
  head.updated_ms, head.renewed_ms = ask.now_ms, nil
  head.due_ms = math.min(ask.until_ms, tonumber(head.deadline_ms) or ask.until_ms)
  local detail = ask.detail .. (head.next_kind or 'initial') .. '"}'
  if ask.is_start then
    begin(ask, head)
  end
  scope.changed[row.uuid] = head
  gather(scope.removed, row.queue, row.uuid)
  if head.due_ms ~= due_ms then
    gather(scope.added, scope.base .. ':due', head.due_ms, row.uuid)
  end
  log(scope, row.uuid, head, ask.is_start and 'claimed' or 'granted', detail)
end

-- Write what was chosen; answers what was taken, by partition: ids and heads as they are now.
local function take_all(scopes, ask, taken, hints)
  for _, row in ipairs(taken) do
    take(row, ask)
  end
  local changes = {}
  for _, scope in ipairs(scopes) do
    if scope.is_touched then
      for _, change in ipairs(close(scope, hints)) do
        changes[#changes + 1] = change
      end
    end
  end
  local rows = {}
  for place, row in ipairs(taken) do
    rows[place] = {row.scope.number, row.uuid, row.scope.texts[row.uuid]}
  end
  return {'ok', scopes[1] and scopes[1].at_ms or 0, rows, changes}
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
  local head = head_of(scope, uuid)
  for _, lane in ipairs(ask.lanes) do
    if head and READY[head.state] and head.namespace == ask.namespace and head.lane == lane then
      watch(scope, head)
      scope.is_touched = true
      local queue = ready_key(scope, ask.namespace, lane)
      local row = {scope = scope, uuid = uuid, head = head, queue = queue}
      return take_all({scope}, ask, {row}, args[4])
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
