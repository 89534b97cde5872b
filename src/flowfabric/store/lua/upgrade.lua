-- Records of the protocol before this one, made what they are now: an execution gets its route, and
-- what is ready moves to the queue of it. A front of then has the lane where the route is now.
--
-- Each call does some records as a whole and says where to go on; what is done already is passed
-- over, so that all of it can be repeated from the beginning.

local function is_name(cell)
  return type(cell) == 'string' and cell ~= ''
end

-- The text with its route, and the row; nothing if it has one, or cannot be read.
local function routed(text, history)
  local front, last, flow = front_of(text)
  local row, columns = read_front(front), columns_of(text)
  if row.is_broken or columns.route or not is_name(columns.lane) or not is_name(columns.kind) then
    return nil
  end
  local before = queue_of(row)
  row.route, row.count = columns.lane .. ' ' .. columns.kind, row.count + 1
  local fresh = string.char(#flow) .. flow .. write_front(row) .. part_of(text, last + 1)
    .. pack('route', row.route)
  if row.count > PAIRS_MAX then
    fresh = shortened(fresh, history)
  end
  return fresh, row, before
end

local function move_ready(scope, uuid, row, before)
  watch(scope, before)
  watch(scope, queue_of(row))
  gather(scope.removed, ':ready:' .. before, uuid)
  gather(scope.added, ready_index(row), place(row), uuid)
end

-- Arguments: 5 is how many records to look at, 6 how many were looked at before; answers where to go
-- on, nothing at the end.
register('upgrade', function(keys, args)
  local scope = open(keys[1], args)
  local base, limit, first = scope.base, tonumber(args[5]), tonumber(args[6])
  local ids, is_changed = call('ZRANGE', base .. ':ids', first, first + limit - 1), false
  for number, text in ipairs(read_texts(base, ids)) do
    local uuid = ids[number]
    local fresh, row, before
    if text then
      fresh, row, before = routed(text, base .. ':log:' .. uuid)
    end
    if fresh then
      is_changed = true
      put(scope.values, base .. ':x:' .. uuid, fresh)
      if READY[row.state] then
        move_ready(scope, uuid, row, before)
      end
    end
  end
  local changes = is_changed and close(scope, args[4]) or {}
  return {'ok', scope.at_ms, #ids == limit and whole(first + #ids) or '', changes}
end)
