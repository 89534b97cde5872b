-- Guarded patches of executions of one partition, each by itself.
--
-- What many have in common, the guard, the patch, the log line, most of the attempt, is sent once,
-- as a shape.

-- What is known of each shape, and its columns and its attempt as they are kept.
local function read_shapes(args, position)
  local shapes = cmsgpack.unpack(args[position])
  for _, shape in ipairs(shapes) do
    shape.columns, shape.attempt, shape.plans = args[position + 1], args[position + 2], {}
    position = position + 2
  end
  return shapes, position + 1
end

-- Whether the guard holds for those with this front, but for the epoch or revision that was seen.
local function guarded(scope, shape, front)
  local row = read_front(front)
  if not shape.token then
    return {row = row, seen = row.rev, is_held = true}
  end
  local is_held = row.state == 'active' and row.lease_token == shape.token
    and (row.reason ~= 'granted') == shape.is_started
    and row.lease_until_ms ~= nil and row.lease_until_ms > scope.at_ms
  return {row = row, seen = row.epoch, is_held = is_held}
end

-- What becomes of those with this front.
local function planned(scope, shape, guard)
  local row = guard.row
  local before = placed(row)
  for name, value in pairs(shape.set) do
    row[name] = value
  end
  for _, name in ipairs(shape.gone) do
    row[name] = nil
  end
  row.rev = row.rev + 1
  row.count = (row.count or 1) + shape.count + (shape.kind and 2 or 1)
  local plan = plan_of(scope, row, before)
  plan.front, plan.columns = write_front(row), shape.columns .. pack('rev', row.rev)
  plan.is_long = row.count > PAIRS_MAX
  if shape.kind then
    say(scope, plan, shape.kind, shape.detail)
  end
  return plan
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
    key = false, text = false, last = false, guard = false, attempt = false, tried = false,
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

-- Read executions and attempts of all items at once, and look at their guards.
local function read_changes(scope, items)
  local keys, base, tried, count = {}, scope.base, {}, #items
  local size = count
  for place = 1, count do
    local item = items[place]
    item.key = base .. ':x:' .. item.uuid
    keys[place] = item.key
  end
  for place = 1, count do
    local item = items[place]
    if item.shape.number then
      item.attempt = base .. ':attempt:' .. item.uuid .. ':' .. text_of(item.shape.number)
      size = size + 1
      tried[size - count], keys[size] = item, item.attempt
    end
  end
  local texts = read_all(keys)
  for place = 1, count do
    local item, text = items[place], texts[place]
    if text then
      local front, last = front_of(text)
      local guards = item.shape.plans
      local guard = guards[front]
      if not guard then
        guard = guarded(scope, item.shape, front)
        guards[front] = guard
      end
      item.text, item.last, item.guard = text, last, guard
    end
  end
  for place = 1, size - count do
    tried[place].tried = texts[count + place]
  end
end

local function holds(item)
  local guard = item.guard
  return guard and guard.is_held and guard.seen == item.seen
end

-- How and when an attempt began is never overwritten, who worked on it only by somebody who did.
-- Its text ends where its result goes.
local function write_attempt(scope, item)
  local text = item.shape.attempt .. pack(item.result)
  if item.tried then
    local is_read, before = pcall(cmsgpack.unpack, item.tried)
    local after = cmsgpack.unpack(text)
    if is_read and type(before) == 'table' then
      after.kind, after.started_ms = before.kind, before.started_ms
      if after.worker == '' then
        after.worker, after.epoch = before.worker, before.epoch
      end
    end
    text = pack(after)
  end
  put(scope.values, item.attempt, text)
end

-- What is kept of one that cannot be read is not lost.
local function body_of(item)
  if item.guard.row.is_broken then
    return pack('broken', item.text)
  end
  return part_of(item.text, item.last + 1)
end

local function write(scope, args, item)
  local uuid, shape, guard = item.uuid, item.shape, item.guard
  local body, plan = body_of(item), guard.plan
  if not plan then
    plan = planned(scope, shape, guard)
    guard.plan = plan
  end
  follow(scope, uuid, item.key, plan, body)
  if item.attempt then
    write_attempt(scope, item)
  end
  if item.extra_count > 0 then
    call('HSET', scope.base .. ':tags:' .. uuid, slice(args, item.extra, item.extra_count))
  end
  if item.line then
    put_line(scope, item.line)
  end
end

-- Remember the queues that a change moves something in or out of.
local function prepare(scope, item)
  local guard = item.guard
  if not guard.is_prepared and (READY[guard.row.state] or READY[item.shape.set.state]) then
    watch(scope, guard.row)
  end
  guard.is_prepared = true
end

-- Arguments: 5 and on are the shapes, then changes.
register('apply', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local items, shapes, position = {}, read_shapes(args, 5)
  while position <= #args do
    items[#items + 1], position = read_change(args, position, shapes)
  end
  read_changes(scope, items)
  local good, refused = {}, {}
  for number, item in ipairs(items) do
    if holds(item) then
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
