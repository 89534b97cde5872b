-- Guarded patches of executions of one partition, each by itself.
--
-- What many have in common, the guard's kind, the patch, the line, most of the attempt, is sent
-- once, as a shape.

local function read_head(base, uuid)
  local cells = redis.call('HMGET', base .. ':x:' .. uuid, 'state', 'rev', 'epoch', 'lease_token',
    'reason', 'lease_until_ms', 'due_ms', 'attempt')
  if not cells[1] then
    return nil
  end
  return {
    state = cells[1], rev = cells[2] or '1', epoch = cells[3] or '0', token = cells[4] or '',
    reason = cells[5], until_ms = tonumber(cells[6]), due_ms = cells[7] or '', attempt = cells[8],
  }
end

local function holds(scope, item, head)
  local shape = item.shape
  if shape.guard == 'seen' then
    return head.rev == item.seen
  end
  return head.state == 'active' and head.epoch == item.seen and head.token == shape.token
    and (head.reason ~= 'granted') == (shape.started == '1')
    and head.until_ms ~= nil and head.until_ms > scope.at_ms
end

-- How many cells are set, those, how many columns go back to what is usual, those.
local function read_patch(args, position)
  local patch = {first = position + 1, count = tonumber(args[position]), values = {}}
  for cell = patch.first, position + patch.count, 2 do
    patch.values[args[cell]] = args[cell + 1]
  end
  local gone = patch.first + patch.count
  patch.gone, patch.gone_count = gone + 1, tonumber(args[gone])
  for cell = patch.gone, gone + patch.gone_count do
    patch.values[args[cell]] = ''
  end
  return patch, gone + 1 + patch.gone_count
end

local function read_shape(args, position)
  local shape = {
    guard = args[position], token = args[position + 1], started = args[position + 2],
    line = args[position + 3], detail = args[position + 4],
    -- Nothing, an attempt, or an attempt with a result.
    attempt = args[position + 5] ~= '' and args[position + 5] or nil,
    has_result = args[position + 6] == '1',
    has_line = args[position + 7] == '1',
  }
  shape.patch, position = read_patch(args, position + 8)
  if shape.attempt then
    shape.began, position = read_patch(args, position)
    shape.worked, position = read_patch(args, position)
    shape.ended, position = read_patch(args, position)
    shape.whole = {}
    for _, part in ipairs({shape.began, shape.worked, shape.ended}) do
      for cell = part.first, part.first + part.count - 1 do
        shape.whole[#shape.whole + 1] = args[cell]
      end
    end
    if shape.has_result then
      shape.whole[#shape.whole + 1] = 'result'
    end
  end
  return shape, position
end

-- How many there are, and those.
local function read_shapes(args, position)
  local shapes, count = {}, tonumber(args[position])
  position = position + 1
  for number = 1, count do
    shapes[number], position = read_shape(args, position)
  end
  return shapes, position
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
  local item = {
    uuid = args[position], seen = args[position + 1],
    shape = shapes[tonumber(args[position + 2])],
    extra = position + 4, extra_count = tonumber(args[position + 3]),
  }
  position = item.extra + item.extra_count
  if item.shape.has_result then
    item.result = args[item.extra]
    item.extra, item.extra_count = item.extra + 1, item.extra_count - 1
  end
  if item.shape.has_line then
    item.line = read_line(args, item.extra)
    item.extra, item.extra_count = item.extra + LINE_CELLS, item.extra_count - LINE_CELLS
  end
  return item, position
end

-- How and when an attempt began is never overwritten, who worked on it only by somebody who did.
local function write_attempt(args, item, is_known)
  local shape = item.shape
  local cells, size, first = shape.whole, #shape.whole, 1
  if shape.has_result then
    cells[size + 1] = item.result
  end
  if is_known and redis.call('EXISTS', item.attempt) == 1 then
    local worked, ended = shape.worked, shape.ended
    redis.call('HDEL', item.attempt, 'result', slice(args, ended.gone, ended.gone_count))
    first = 1 + shape.began.count + (worked.values.worker == '' and worked.count or 0)
  end
  redis.call('HSET', item.attempt, unpack(cells, first))
  cells[size + 1] = nil
end

-- The columns that indexes and lines are made of, after the patch.
local function changed(scope, item)
  local head, values = item.head, item.shape.patch.values
  local after = {
    state = values.state or head.state, due_ms = values.due_ms or head.due_ms,
    attempt = values.attempt or head.attempt, epoch = values.epoch or head.epoch,
    flow = values.flow ~= '' and values.flow or nil,
  }
  if READY[head.state] or READY[after.state] then
    local cells = redis.call('HMGET', scope.base .. ':x:' .. item.uuid,
      'namespace', 'lane', 'priority', 'created_ms')
    after.namespace, after.lane, after.created_ms = cells[1] or '', cells[2] or '', cells[4]
    after.priority = values.priority or cells[3]
    watch(scope, after.namespace, after.lane)
  end
  return after
end

local function write(scope, args, item, is_known)
  local key, patch = scope.base .. ':x:' .. item.uuid, item.shape.patch
  redis.call('HSET', key, 'rev', (tonumber(item.head.rev) or 0) + 1, slice(args, patch.first, patch.count))
  if patch.gone_count > 0 then
    redis.call('HDEL', key, slice(args, patch.gone, patch.gone_count))
  end
  index(scope, item.uuid, item.head, item.after)
  if item.attempt then
    write_attempt(args, item, is_known)
  end
  if item.extra_count > 0 then
    redis.call('HSET', scope.base .. ':tags:' .. item.uuid, slice(args, item.extra, item.extra_count))
  end
  if item.shape.line ~= '' then
    log(scope, item.uuid, item.shape.line, item.after, item.shape.detail)
  end
  if item.line then
    put_line(scope, item.line)
  end
end

-- All that has to be known before the first write.
local function prepare(scope, item, attempts)
  item.after = changed(scope, item)
  if item.shape.attempt then
    item.attempt = scope.base .. ':attempt:' .. item.uuid .. ':' .. item.shape.attempt
    attempts[#attempts + 1] = item.attempt
  end
end

-- Arguments: 5 is how many shapes follow, then changes.
register('apply', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local good, refused, attempts, number = {}, {}, {}, 0
  local shapes, position = read_shapes(args, 5)
  while position <= #args do
    local item
    item, position = read_change(args, position, shapes)
    item.head = read_head(scope.base, item.uuid)
    if item.head and holds(scope, item, item.head) then
      prepare(scope, item, attempts)
      good[#good + 1] = item
    else
      local row = item.head and redis.call('HGETALL', scope.base .. ':x:' .. item.uuid) or {}
      refused[#refused + 1] = {number, row}
    end
    number = number + 1
  end
  if #good == 0 then
    return {'ok', scope.at_ms, refused, {}}
  end
  local is_known = any_exists(attempts)
  for _, item in ipairs(good) do
    write(scope, args, item, is_known)
  end
  return {'ok', scope.at_ms, refused, close(scope, args[4])}
end)
