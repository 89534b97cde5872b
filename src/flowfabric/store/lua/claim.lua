-- Claims: the best rows of some ready queues, copied into leases.
--
-- On one server a claim looks at the hinted partitions itself; in a cluster the caller has looked
-- and asks each partition for its share. A row is taken as the last decision left it: the claim
-- only copies.

local CHUNK_MIN, CHUNK_MAX = 8, 128
local PARTITIONS_AT_ONCE = 16
local ROUTE_QUEUES_MIN, QUEUES_AT_ONCE = 2, 128

-- Arguments 5 to 12: namespace, limit, worker, token, end of the lease, whether to start, and in
-- 11 how many routes follow.
local function read_ask(args)
  local ask = {
    namespace = args[5], limit = tonumber(args[6]), worker = args[7], token = args[8],
    until_ms = tonumber(args[9]), is_start = args[10] == '1', now_ms = tonumber(args[1]),
    reason = args[10] == '1' and 'none' or 'granted',
    routes = {}, plans = {}, examined = 0, detail = '{"worker":' .. cjson.encode(args[7]) .. ',"kind":"',
  }
  for place = 1, tonumber(args[11]) do
    ask.routes[place] = args[11 + place]
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

-- Few ids of each queue are looked at first, more of those that are taken from.
local function fill(queue)
  local past = queue.offset + queue.chunk
  queue.found = call('ZRANGE', queue.key, queue.offset, past - 1, 'WITHSCORES')
  queue.ask.examined = queue.ask.examined + #queue.found / 2
  queue.at, queue.offset, queue.chunk = 1, past, math.min(queue.chunk * 4, CHUNK_MAX)
end

-- Where the queue is now; nothing if it has no more.
local function refresh(queue)
  if queue.at > #queue.found and #queue.found > 0 then
    fill(queue)
  end
  queue.score = tonumber(queue.found[queue.at + 1])
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

-- Where the better of two queues below a place of the heap is, if there is any.
local function better_below(heap, place)
  local left, right = heap[2 * place], heap[2 * place + 1]
  if right and goes_first(right, left) then
    return 2 * place + 1
  end
  return left and 2 * place
end

-- Put the queue of this place where it belongs, below others that go first.
local function sink(heap, place)
  local queue, below = heap[place], better_below(heap, place)
  while below and goes_first(heap[below], queue) do
    heap[place], place = heap[below], below
    below = better_below(heap, place)
  end
  heap[place] = queue
end

-- Those with a row, the one with the best at the top.
local function heap_of(queues)
  local heap = {}
  for _, queue in ipairs(queues) do
    if queue.score then
      heap[#heap + 1] = queue
    end
  end
  for place = math.floor(#heap / 2), 1, -1 do
    sink(heap, place)
  end
  return heap
end

-- After the queue at the top has given something.
local function settle(heap)
  if not heap[1].score then
    local last = table.remove(heap)
    if #heap == 0 then
      return
    end
    heap[1] = last
  end
  sink(heap, 1)
end

-- Those of each partition that are asked for: all routes, or those that hints name there.
local function queues_of(scopes, ask)
  local queues, count = {}, 0
  for _, scope in ipairs(scopes) do
    count = count + #(scope.routes or ask.routes)
  end
  local chunk = math.max(CHUNK_MIN, math.min(CHUNK_MAX, math.ceil(ask.limit / count)))
  for rank, scope in ipairs(scopes) do
    for _, route in ipairs(scope.routes or ask.routes) do
      local name = queue_name(ask.namespace, route)
      local queue = {
        key = scope.base .. ':ready:' .. name, name = name, scope = scope,
        rank = rank, offset = 0, chunk = chunk, ask = ask,
      }
      fill(queue)
      refresh(queue)
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
    for name, value in pairs(open(scope.base, args, scope.shared)) do
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

-- Copy the lease into the row. An attempt begins: which one, and how long it may take, was said by
-- the last decision; answers until when.
local function hold(row, ask)
  row.rev, row.epoch, row.state, row.reason = row.rev + 1, row.epoch + 1, 'active', ask.reason
  row.lease_token, row.lease_until_ms = ask.token, ask.until_ms
  row.due_ms = math.min(ask.until_ms, row.deadline_ms or ask.until_ms)
  if not ask.is_start then
    return nil
  end
  row.attempt, row.started_ms = row.next_attempt, row.started_ms or ask.now_ms
  local until_ms = row.attempt_left_ms and ask.now_ms + row.attempt_left_ms
  row.due_ms = math.min(row.due_ms, until_ms or row.due_ms)
  return until_ms
end

-- The columns of a lease, and how many they are.
local function held_columns(row, ask, kind, until_ms)
  local lease = pack('rev', row.rev, 'epoch', row.epoch, 'state', 'active', 'reason', ask.reason,
    'lease_token', ask.token, 'lease_until_ms', ask.until_ms, 'worker', ask.worker, 'updated_ms',
    ask.now_ms, 'renewed_ms', nil, 'due_ms', row.due_ms)
  if not ask.is_start then
    return lease, 10
  end
  local begun = pack('attempt', row.attempt, 'attempt_kind', kind, 'attempt_state',
    'running_attempt', 'attempt_started_ms', ask.now_ms, 'started_ms', row.started_ms,
    'attempt_until_ms', until_ms, 'lost', 'none')
  return lease .. begun, 17
end

-- What becomes of those with this front, if they are ready as their queue says.
local function plan_claim(scope, ask, front)
  local row = read_front(front)
  local before = placed(row)
  if not READY[row.state] then
    return {is_ready = false}
  end
  local kind, until_ms = row.next_kind ~= '' and row.next_kind or 'initial', hold(row, ask)
  local columns, count = held_columns(row, ask, kind, until_ms)
  row.count = row.count + count + 1
  local plan = plan_of(row, before)
  plan.front, plan.columns, plan.is_ready = write_front(row), columns, true
  plan.is_long = row.count > PAIRS_MAX
  say(scope, plan, ask.is_start and 'claimed' or 'granted', ask.detail .. kind .. '"}')
  return plan
end

local function plan_for(queue, ask, text)
  local front, last, flow = front_of(text)
  local plan = ask.plans[front]
  if not plan then
    plan = plan_claim(queue.scope, ask, front)
    ask.plans[front] = plan
  end
  return plan, last, flow
end

-- The next best ids of these queues, as many as wanted; answers also a refusal, if there is one.
local function pick(queues, wanted, args)
  local picked, keys, heap = {}, {}, heap_of(queues)
  while #picked < wanted do
    local queue, second = heap[1], heap[better_below(heap, 1)]
    if queue == nil or touch(queue, args) then
      return picked, keys, queue and queue.scope.refusal
    end
    repeat
      local uuid, place = queue.found[queue.at], #picked + 1
      picked[place], keys[place] = {queue = queue, uuid = uuid}, queue.scope.base .. ':x:' .. uuid
      queue.at = queue.at + 2
      refresh(queue)
    until place == wanted or not queue.score or (second and not goes_first(queue, second))
    settle(heap)
  end
  return picked, keys
end

-- The best rows of these partitions; places of rows that are not ready are noted to be removed.
local function choose(scopes, ask, taken, args)
  local queues = queues_of(scopes, ask)
  for _, queue in ipairs(queues) do
    if not queue.score and touch(queue, args) then
      return queue.scope.refusal
    end
  end
  local picked, keys, refusal
  repeat
    picked, keys, refusal = pick(queues, ask.limit - #taken, args)
    if refusal then
      return refusal
    end
    for place, text in ipairs(read_all(keys)) do
      local queue, uuid = picked[place].queue, picked[place].uuid
      local plan, last, flow
      if text then
        plan, last, flow = plan_for(queue, ask, text)
      end
      if plan and plan.is_ready then
        taken[#taken + 1] = {
          scope = queue.scope, uuid = uuid, key = keys[place], plan = plan, text = text,
          last = last, flow = flow, home = flow,
        }
      else
        gather(queue.scope.removed, ':ready:' .. queue.name, uuid)
      end
    end
  until #taken == ask.limit or #picked == 0
end

-- Write what was chosen; answers what was taken, by partition: ids and heads as they are now.
local function take_all(scopes, taken, ask, hints)
  for _, row in ipairs(taken) do
    row.text = follow(row.scope, row.plan, row, part_of(row.text, row.last + 1))
  end
  local changes, values = {}, {n = 0}
  for _, scope in ipairs(scopes) do
    if scope.is_touched then
      finish(scope, changes)
      values = scope.values
    end
  end
  write_records(values)
  local rows = {}
  for place, row in ipairs(taken) do
    rows[place] = {partition_of(row.scope), row.uuid, row.text}
  end
  return {'ok', scopes[1] and scopes[1].at_ms or 0, rows, pass_on(hints, changes), ask.examined}
end

-- The best of one partition.
register('claim', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask, taken = read_ask(args), {}
  choose({scope}, ask, taken, args)
  return take_all({scope}, taken, ask, args[4])
end)

-- One named row of one partition, if it is ready in one of the routes.
register('claim_one', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask = read_ask(args)
  local uuid = args[12 + #ask.routes]
  local key = scope.base .. ':x:' .. uuid
  local text = call('GET', key)
  local front, last, flow = front_of(text or '')
  local row = read_front(front)
  for _, route in ipairs(ask.routes) do
    if READY[row.state] and row.namespace == ask.namespace and row.route == route then
      watch(scope, queue_of(row))
      scope.is_touched = true
      local plan = plan_claim(scope, ask, front)
      local taken = {
        scope = scope, uuid = uuid, key = key, plan = plan, text = text, last = last, flow = flow,
        home = flow,
      }
      return take_all({scope}, {taken}, ask, args[4])
    end
  end
  return {'ok', scope.at_ms, {}, {}}
end)

-- Add the queues that hints name from this place on, so many of each route. Answers how good a head
-- may be at most that is behind them; nothing if there is none.
local function add_hinted(found, ask, args, offset, count)
  local bound
  for _, route in ipairs(ask.routes) do
    local key = args[4] .. '{hint:' .. queue_name(ask.namespace, route) .. '}'
    local cells = call('ZRANGE', key, offset, offset + count - 1, 'WITHSCORES')
    ask.examined = ask.examined + #cells / 2
    for place = 1, #cells, 2 do
      found[#found + 1] = {number = cells[place], route = route, score = tonumber(cells[place + 1])}
    end
    if #cells == 2 * count then
      bound = math.min(bound or found[#found].score, found[#found].score)
    end
  end
  if #ask.routes > 1 then
    table.sort(found, function(a, b)
      return a.score < b.score
    end)
  end
  return bound
end

-- Where some of these queues are, from a place on, in the order of their partitions' ids; answers
-- also the next place. As many as are wanted have all of the best, with those that begin alike; none
-- is behind what may be better.
local function some_scopes(found, first, wanted, bound, known, begin_scope)
  local scopes, here, place = {}, {}, first
  while found[place] and (not bound or found[place].score <= bound)
    and (place < first + wanted or found[place].score == found[place - 1].score) do
    local number, route = found[place].number, found[place].route
    if not here[number] then
      here[number] = true
      known[number] = known[number] or begin_scope(number)
      known[number].routes = {}
      scopes[#scopes + 1] = known[number]
    end
    local routes = known[number].routes
    routes[#routes + 1], place = route, place + 1
  end
  table.sort(scopes, function(a, b)
    return is_before(a.number, b.number)
  end)
  return scopes, place
end

-- The best of all hinted partitions, when all keys are on one server.
-- Differs: the declared key is where the hints are, and partitions are found through them.
register('claim_hinted', function(keys, args)
  local shared = begin(args)
  local first = open(keys[1], args, shared)
  if first.refusal then
    return first.refusal
  end
  local ask, taken, seen, known = read_ask(args), {}, {}, {}
  local wanted = math.max(ask.limit, PARTITIONS_AT_ONCE)
  local function begin_scope(number)
    local scope = {base = args[4] .. '{fp:' .. number .. '}', number = number, shared = shared}
    seen[#seen + 1] = scope
    return scope
  end
  -- Of many routes few each at first: more of them where those are not enough.
  local offset, count = 0, PARTITIONS_AT_ONCE
  if #ask.routes > 1 then
    count = math.min(count, math.max(ROUTE_QUEUES_MIN, math.ceil(QUEUES_AT_ONCE / #ask.routes)))
  end
  local found = {}
  repeat
    local bound, place, scopes = add_hinted(found, ask, args, offset, count), 1, nil
    repeat
      scopes, place = some_scopes(found, place, wanted, bound, known, begin_scope)
      local refusal = #scopes > 0 and choose(scopes, ask, taken, args)
      if refusal then
        return refusal
      end
    until #scopes == 0 or #taken >= ask.limit
    found = {unpack(found, place)}
    offset, count = offset + count, PARTITIONS_AT_ONCE
  until not bound or #taken >= ask.limit
  local answer = take_all(seen, taken, ask, args[4])
  answer[2] = first.at_ms
  return answer
end)
