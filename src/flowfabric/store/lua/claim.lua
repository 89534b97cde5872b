-- Claims: the best rows of some ready queues, copied into leases.
--
-- On one server a claim looks at the hinted partitions itself; in a cluster the caller has looked
-- and asks each partition for its share. A row is taken as the last decision left it: the claim
-- only copies.

local PARTITIONS_AT_ONCE = 16
local HINTS_MIN, HINTS_TOGETHER = 2, 128

-- Arguments 5 to 12: namespace, limit, worker, token, end of the lease, whether to start, and in
-- 11 how many routes follow.
local function read_ask(args)
  local ask = {
    namespace = args[5], limit = tonumber(args[6]), worker = args[7], token = args[8],
    until_ms = tonumber(args[9]), is_start = args[10] == '1', now_ms = tonumber(args[1]),
    reason = args[10] == '1' and 'none' or 'granted',
    names = {}, fates = {}, shapes = {}, examined = 0, queues = {}, turns = {}, route_at = 0,
    detail = '{"worker":' .. cjson.encode(args[7]) .. ',"kind":"',
  }
  local beginning = queue_name(ask.namespace, '')
  ask.route_at = #beginning + 1
  for place = 1, tonumber(args[11]) do
    ask.names[place] = beginning .. args[11 + place]
  end
  return ask
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

-- What becomes of those with this front, if they are ready; that they leave the queue where they
-- were found is no part of it.
local function plan_claim(scope, ask, front, queue)
  local row = read_front(front)
  if not READY[row.state] then
    return {is_ready = false, front = front}
  end
  local before = {state = row.state, due_ms = row.due_ms, purge_ms = row.purge_ms}
  before.is_found = queue_of(row) == queue
  local kind, until_ms = row.next_kind ~= '' and row.next_kind or 'initial', hold(row, ask)
  local columns, count = held_columns(row, ask, kind, until_ms)
  row.count = row.count + count + 1
  local plan = plan_of(row, before)
  plan.front, plan.columns, plan.is_ready = write_front(row), columns, true
  plan.is_long = row.count > PAIRS_MAX
  say(scope, plan, ask.is_start and 'claimed' or 'granted', ask.detail .. kind .. '"}')
  return plan
end

-- The plan of a row, and its front: those that differ in their route alone have one plan.
local function fate_of(queue, ask, front)
  local route = part_of(queue.name, ask.route_at)
  local before, after = around_route(front, route)
  local shape = before and before .. after
  local known = shape and ask.shapes[shape]
  if known then
    return {plan = known.plan, front = known.before .. route .. known.after}
  end
  local plan = plan_claim(queue.scope, ask, front, queue.name)
  if shape then
    before, after = around_route(plan.front, route)
    ask.shapes[shape] = {plan = plan, before = before, after = after}
  end
  return {plan = plan, front = plan.front}
end

-- Open the partition of a queue that will change; answers a refusal, if it refuses.
local function touch(queue, args)
  local scope = queue.scope
  if not scope.is_open then
    for name, value in pairs(open(scope.base, args, scope.shared)) do
      scope[name] = value
    end
  end
  scope.is_touched = true
  return scope.refusal
end

-- The best rows of these queues and of those before them, up to this head. Where nothing is, its hint
-- is wrong; a row that is not ready only leaves its queue.
local function choose(places, bound, ask, taken, args)
  local queues = read_queues(places, ask)
  for _, queue in ipairs(queues) do
    ask.queues[#ask.queues + 1] = queue
    if not queue.score and touch(queue, args) then
      return queue.scope.refusal
    end
  end
  ask.turns = in_turn(ask.turns, queues)
  repeat
    local from, ids, keys = pick(ask.turns, ask.limit - #taken, bound)
    for place, text in ipairs(read_all(keys)) do
      local queue = from[place]
      if touch(queue, args) then
        return queue.scope.refusal
      end
      local front, last, flow = front_of(text or '')
      local fate = ask.fates[front]
      if not fate then
        fate = fate_of(queue, ask, front)
        ask.fates[front] = fate
      end
      if text and fate.plan.is_ready then
        taken[#taken + 1] = {
          scope = queue.scope, uuid = ids[place], key = keys[place], plan = fate.plan,
          front = fate.front, text = text, last = last, flow = flow, home = flow,
        }
      end
    end
  until #taken == ask.limit or #ids == 0
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
  shorten(ask.queues, hints, changes)
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
  local ask, taken, places = read_ask(args), {}, {}
  scope.is_touched, scope.rank = true, ''
  for place, name in ipairs(ask.names) do
    places[2 * place - 1], places[2 * place] = scope, name
  end
  choose(places, nil, ask, taken, args)
  return take_all({scope}, taken, ask, args[4])
end)

-- One named row of one partition, if it is ready in one of the routes.
register('claim_one', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local ask = read_ask(args)
  local uuid = args[12 + #ask.names]
  local key = scope.base .. ':x:' .. uuid
  local text = call('GET', key)
  local front, last, flow = front_of(text or '')
  local row = read_front(front)
  for _, name in ipairs(ask.names) do
    if READY[row.state] and queue_of(row) == name then
      watch(scope, name)
      scope.is_touched = true
      local taken = {
        scope = scope, uuid = uuid, key = key, plan = plan_claim(scope, ask, front), text = text,
        last = last, flow = flow, home = flow,
      }
      return take_all({scope}, {taken}, ask, args[4])
    end
  end
  return {'ok', scope.at_ms, {}, {}}
end)

-- Partitions by number, each made when it is first asked for, and all of those.
local function partitions_of(args, shared)
  local known, all = {}, {}
  return function(number)
    local scope = known[number]
    if not scope then
      scope = {
        base = args[4] .. '{fp:' .. number .. '}', number = number, shared = shared,
        rank = rank_of(number),
      }
      known[number], all[#all + 1] = scope, scope
    end
    return scope
  end, all
end

-- Take from these queues, the names of queues by partition, until there are enough. As many queues
-- as are wanted have all of the best, with those of their partition that begin alike. Hints that were
-- not read begin with the bound at best.
local function choose_among(ordered, bound, partition, ask, taken, args)
  local places, wanted = {}, math.max(ask.limit, PARTITIONS_AT_ONCE)
  if #ordered == 0 then
    return choose(places, bound, ask, taken, args)
  end
  for position, names in ipairs(ordered) do
    local scope, following = partition(names.number), ordered[position + 1]
    for _, name in ipairs(names) do
      places[#places + 1] = scope
      places[#places + 1] = name
    end
    if #places >= 2 * wanted or not following then
      local refusal = choose(places, following and following.score or bound, ask, taken, args)
      if refusal or #taken == ask.limit then
        return refusal
      end
      places = {}
    end
  end
end

-- The best of all hinted partitions, when all keys are on one server.
-- Differs: the declared key is where the hints are, and partitions are found through them.
register('claim_hinted', function(keys, args)
  local shared = begin(args)
  local first = open(keys[1], args, shared)
  if first.refusal then
    return first.refusal
  end
  local ask, taken = read_ask(args), {}
  local partition, seen = partitions_of(args, shared)
  local hints = hints_of(ask.names, args[4] .. '{hint:')
  -- Of many routes few each at first: more of them where those are not enough.
  local share = math.max(HINTS_MIN, math.ceil(HINTS_TOGETHER / math.max(#ask.names, 1)))
  local count = math.min(PARTITIONS_AT_ONCE, share)
  while #taken < ask.limit and #hints.open > 0 do
    local bound, examined = read_hints(hints, count)
    local ordered = in_order(use_hints(hints, bound))
    local refusal = choose_among(ordered, bound, partition, ask, taken, args)
    if refusal then
      return refusal
    end
    ask.examined, count = ask.examined + examined, PARTITIONS_AT_ONCE
  end
  local answer = take_all(seen, taken, ask, args[4])
  answer[2] = first.at_ms
  return answer
end)
