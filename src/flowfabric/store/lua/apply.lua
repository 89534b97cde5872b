-- Guarded patches of executions of one partition, each by itself.
--
-- What many have in common, the guard, the patch, the log line, most of the attempt, is sent once,
-- as a shape.

-- Shapes have the columns that are looked at, names and values in turn, and the state among them;
-- and columns and attempt as they are kept.
local function read_shapes(shapes)
  for _, shape in ipairs(shapes) do
    shape.guards, shape.attempt_name = {}, shape.number and ':' .. text_of(shape.number)
  end
  return shapes
end

-- Whether the guard holds for those with this front, but for the time and the epoch or revision that
-- was seen; where they were before, and the queue that a change moves them in or out of.
local function guarded(shape, front)
  local row, is_held, seen = read_front(front), true, nil
  if shape.token then
    seen = row.epoch
    is_held = holds_lease(row, shape.token, shape.reasons)
  end
  local is_queued = READY[row.state] or READY[shape.state]
  return {
    row = row, seen = seen or row.rev, is_held = is_held, state = row.state,
    until_ms = shape.token and row.lease_until_ms or math.huge, due_ms = row.due_ms,
    purge_ms = row.purge_ms, queue = is_queued and queue_of(row), plan = false,
  }
end

-- What becomes of those with this front.
local function planned(scope, shape, guard)
  local row, set, gone = guard.row, shape.set, shape.gone
  for place = 1, #set, 2 do
    row[set[place]] = set[place + 1]
  end
  for place = 1, #gone do
    row[gone[place]] = nil
  end
  row.rev = row.rev + 1
  row.count = (row.count or 1) + shape.count + (shape.kind and 2 or 1)
  local plan = plan_of(row, guard)
  plan.front, plan.columns, plan.rev = write_front(row), shape.columns, row.rev
  plan.is_long = row.count > PAIRS_MAX
  if shape.kind then
    say(scope, plan, shape.kind, shape.detail)
  end
  return plan
end

local LINE_CELLS = 4

-- An id, the epoch or revision seen, the shape, and how many more cells: the result, the line of a
-- flow, entries, tags.
local function read_change(scope, cells, position, shapes)
  local uuid, shape = cells[position], shapes[cells[position + 2]]
  local extra, past = position + 4, position + 4 + cells[position + 3]
  local item = {
    scope = scope, uuid = uuid, seen = cells[position + 1], shape = shape,
    key = scope.base .. ':x:' .. uuid, text = false, last = false, guard = false, flow = '',
    home = '', attempt = false, tried = false, result = false, line = false, tags = false, entries = false,
    past = past,
  }
  if shape.number then
    item.attempt = scope.base .. ':attempt:' .. uuid .. shape.attempt_name
  end
  if shape.has_result then
    item.result, extra = cells[extra], extra + 1
  end
  if shape.has_line then
    item.line, extra = extra, extra + LINE_CELLS
  end
  if shape.has_entries then
    item.entries, extra = extra, extra + 1 + cells[extra] * ENTRY_CELLS
  end
  if extra < past then
    item.tags = extra
  end
  return item, past
end

-- Read executions and attempts of all items at once, and look at their guards.
local function read_changes(items)
  local keys, size = {}, 0
  for place = 1, #items do
    local item = items[place]
    size = size + 1
    keys[size] = item.key
    if item.attempt then
      size = size + 1
      keys[size] = item.attempt
    end
  end
  local texts, at = read_all(keys), 0
  for place = 1, #items do
    local item = items[place]
    at = at + 1
    local text = texts[at]
    if text then
      local front, last, flow = front_of(text)
      local shape = item.shape
      local guard = shape.guards[front]
      if not guard then
        guard = guarded(shape, front)
        shape.guards[front] = guard
      end
      item.text, item.last, item.guard = text, last, guard
      item.flow = guard.row.is_broken and '' or flow
      item.home = shape.home or item.flow
    end
    if item.attempt then
      at = at + 1
      item.tried = texts[at]
    end
  end
end

local function holds(item)
  local guard = item.guard
  return guard and guard.is_held and guard.seen == item.seen and guard.until_ms > item.scope.at_ms
end

-- How and when an attempt began is never overwritten, who worked on it only by somebody who did.
-- Its text ends where its result goes.
local function write_attempt(scope, item)
  local text = item.shape.attempt .. pack(item.result or nil)
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

local function write(scope, cells, item)
  local uuid, shape, guard = item.uuid, item.shape, item.guard
  local body, plan = body_of(item), guard.plan
  if not plan then
    plan = planned(scope, shape, guard)
    guard.plan = plan
  end
  local text = follow(scope, plan, item, body)
  if item.attempt then
    write_attempt(scope, item)
  end
  if item.tags then
    call('HSET', scope.base .. ':tags:' .. uuid, slice(cells, item.tags, item.past - item.tags))
  end
  if item.line then
    put_line(scope, slice(cells, item.line, LINE_CELLS))
  end
  if item.entries then
    local first, count = item.entries + 1, cells[item.entries]
    put_entries(scope.base, uuid, text, plan.row.epoch or 0, cells, first, count)
  end
end

-- Remember the queues that a change moves something in or out of.
local function prepare(scope, item)
  if item.guard.queue then
    watch(scope, item.guard.queue)
  end
end

-- Argument 5 is a list: the shapes, then changes.
register('apply', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local items, cells, position = {}, cmsgpack.unpack(args[5]), 2
  local shapes = read_shapes(cells[1])
  while position <= #cells do
    items[#items + 1], position = read_change(scope, cells, position, shapes)
  end
  read_changes(items)
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
    write(scope, cells, item)
  end
  return {'ok', scope.at_ms, refused, close(scope, args[4])}
end)
