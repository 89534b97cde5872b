-- Guarded patches of executions of one partition, each by itself.
--
-- What many have in common, the guard, the patch, the log line, most of the attempt, is sent once,
-- as a shape.

local function holds(scope, item, head)
  local shape = item.shape
  if not shape.token then
    return (tonumber(head.rev or 1) or 0) == item.seen
  end
  local until_ms = tonumber(head.lease_until_ms)
  return head.state == 'active' and (head.epoch or 0) == item.seen
    and head.lease_token == shape.token and (head.reason ~= 'granted') == shape.is_started
    and until_ms ~= nil and until_ms > scope.at_ms
end

local LINE_CELLS = 4

local function read_line(args, position)
  return {
    flow = args[position], name = args[position + 1],
    next_try_ms = args[position + 2], text = args[position + 3],
  }
end

-- An id, the epoch or revision seen, the shape, and how many more cells: the result, the line of a
-- flow, tags.
local function read_change(args, position, shapes)
  local shape = shapes[tonumber(args[position + 2])]
  local item = {
    uuid = args[position], seen = tonumber(args[position + 1]), shape = shape,
    extra = position + 4, extra_count = tonumber(args[position + 3]),
  }
  position = item.extra + item.extra_count
  if shape.has_result then
    item.result = args[item.extra]
    item.extra, item.extra_count = item.extra + 1, item.extra_count - 1
  end
  if shape.has_line then
    item.line = read_line(args, item.extra)
    item.extra, item.extra_count = item.extra + LINE_CELLS, item.extra_count - LINE_CELLS
  end
  return item, position
end

-- Read heads and attempts of all items at once.
local function read_changes(scope, items)
  local keys, base, heads = {}, scope.base, scope.heads
  for place, item in ipairs(items) do
    keys[place] = base .. ':x:' .. item.uuid
  end
  local tried = {}
  for _, item in ipairs(items) do
    if item.shape.attempt then
      item.attempt = base .. ':attempt:' .. item.uuid .. ':' .. item.shape.number
      tried[#tried + 1], keys[#keys + 1] = item, item.attempt
    end
  end
  local texts = read_all(keys)
  for place, item in ipairs(items) do
    item.text = texts[place]
    heads[item.uuid] = item.text and decode(item.text)
  end
  for place, item in ipairs(tried) do
    item.tried = texts[#items + place]
  end
end

-- How and when an attempt began is never overwritten, who worked on it only by somebody who did.
local function write_attempt(scope, item)
  local attempt, values = item.shape.attempt, scope.values
  if item.tried then
    local known, after = decode(item.tried), {}
    for name, value in pairs(attempt) do
      after[name] = value
    end
    after.kind, after.started_ms = known.kind, known.started_ms
    if not attempt.worker then
      after.worker, after.epoch = known.worker, known.epoch
    end
    attempt = after
  end
  attempt.result = item.result
  local size = #values
  values[size + 1], values[size + 2] = item.attempt, cmsgpack.pack(attempt)
end

local function write(scope, args, item)
  local uuid, shape = item.uuid, item.shape
  local head = scope.heads[uuid]
  local state, due_ms = head.state, head.due_ms
  for name, value in pairs(shape.set) do
    head[name] = value
  end
  for _, name in ipairs(shape.gone) do
    head[name] = nil
  end
  head.rev = (tonumber(head.rev or 1) or 0) + 1
  scope.changed[uuid] = head
  index(scope, uuid, state, due_ms, head)
  if shape.set.flow then
    gather(scope.added, scope.base .. ':members:' .. shape.set.flow, 0, uuid)
  end
  if item.attempt then
    write_attempt(scope, item)
  end
  if item.extra_count > 0 then
    redis.call('HSET', scope.base .. ':tags:' .. uuid, slice(args, item.extra, item.extra_count))
  end
  if shape.kind then
    log(scope, uuid, head, shape.kind, shape.detail)
  end
  if item.line then
    put_line(scope, item.line)
  end
end

-- Remember the queues that a change moves something in or out of.
local function prepare(scope, item)
  local head = scope.heads[item.uuid]
  if READY[head.state] or READY[item.shape.set.state] then
    watch(scope, head)
  end
end

-- Arguments: 5 is the shapes, then changes.
register('apply', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local shapes, position, items = cmsgpack.unpack(args[5]), 6, {}
  while position <= #args do
    items[#items + 1], position = read_change(args, position, shapes)
  end
  read_changes(scope, items)
  local good, refused = {}, {}
  for number, item in ipairs(items) do
    local head = scope.heads[item.uuid]
    if head and holds(scope, item, head) then
      prepare(scope, item)
      good[#good + 1] = item
    else
      refused[#refused + 1] = {number - 1, item.text}
    end
  end
  if #good == 0 then
    return {'ok', scope.at_ms, refused, {}}
  end
  for _, item in ipairs(good) do
    write(scope, args, item)
  end
  return {'ok', scope.at_ms, refused, close(scope, args[4])}
end)
