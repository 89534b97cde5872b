-- New executions with their bodies, tags and keys, all of one partition.
--
-- What many have in common is sent once, as a template of columns. A small payload is a column of
-- the head; a larger one, which must not be written again with every change, has a key of its own.

local INLINE_BYTES_MAX = 256

local function read_item(scope, args, position, templates)
  local template = tonumber(args[position + 2])
  local item = {
    uuid = args[position], payload = args[position + 1],
    head = templates[math.abs(template)], is_looked_for = template < 0,
    extra = position + 4, extra_count = tonumber(args[position + 3]),
  }
  if item.extra_count > 0 and args[item.extra] ~= '' then
    local namespace = item.head.namespace
    item.digest, item.until_ms = args[item.extra + 1], args[item.extra + 2]
    item.key = scope.base .. ':key:' .. queue_name(namespace, args[item.extra])
    item.owner = {string.match(scope.base, '{.*}') .. ':' .. item.uuid, item.digest}
  end
  return item, item.extra + item.extra_count
end

-- Look at once whether any of the ids is there; only then at each.
local function look_for_ids(scope, items)
  local keys, seen = {}, {}
  for number, item in ipairs(items) do
    keys[number] = scope.base .. ':x:' .. item.uuid
  end
  if #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0 then
    for number, item in ipairs(items) do
      seen[item.uuid] = redis.call('EXISTS', keys[number]) == 1
    end
  end
  return seen
end

-- What is known of an item before anything is written: nothing, its id, or the owner of its key.
local function known(scope, item, seen)
  if item.key and seen[item.key] == nil then
    local cells = redis.call('HMGET', item.key, 'id', 'digest', 'until_ms')
    local is_alive = cells[1] and tonumber(cells[3]) > tonumber(scope.now)
    seen[item.key] = is_alive and {cells[1], cells[2]} or false
  end
  if item.key and seen[item.key] then
    return seen[item.key]
  end
  return seen[item.uuid] and 0 or nil
end

local function write_key(args, item)
  redis.call('HSET', item.key, 'id', item.owner[1], 'digest', item.digest, 'until_ms', item.until_ms)
  if args[2] == '' then
    redis.call('PEXPIREAT', item.key, item.until_ms)
  end
end

local function write_new(scope, args, item)
  local base, uuid, head, values = scope.base, item.uuid, item.head, scope.values
  local is_small = #item.payload <= INLINE_BYTES_MAX
  head.payload, head.log = is_small and item.payload or nil, nil
  index(scope, uuid, nil, nil, head)
  log(scope, uuid, head, 'submitted', '{}')
  local size, text = #values, cmsgpack.pack(head)
  values[size + 1], values[size + 2], scope.texts[uuid] = base .. ':x:' .. uuid, text, text
  if not is_small then
    values[size + 3], values[size + 4] = base .. ':payload:' .. uuid, item.payload
  end
  if head.flow then
    gather(scope.added, base .. ':members:' .. head.flow, 0, uuid)
  end
  if item.extra_count > 3 then
    redis.call('HSET', base .. ':tags:' .. uuid, slice(args, item.extra + 3, item.extra_count - 3))
  end
  if item.key then
    write_key(args, item)
  end
end

-- Arguments: 5 is the templates, then items: id, payload, template (below zero: only look for it),
-- and how many more cells: key, digest, end of the key, tags. Answers of items: 1 for a new one, 0
-- for one that is there, -1 for one that is not, or the owner and digest of its key.
register('insert', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local templates, position, items = cmsgpack.unpack(args[5]), 6, {}
  while position <= #args do
    items[#items + 1], position = read_item(scope, args, position, templates)
  end
  local seen, answers, fresh = look_for_ids(scope, items), {}, {}
  for number, item in ipairs(items) do
    local answer = known(scope, item, seen)
    answers[number] = answer or (item.is_looked_for and -1 or 1)
    if answer == nil and not item.is_looked_for then
      fresh[#fresh + 1] = item
      seen[item.uuid] = true
      if item.key and tonumber(item.until_ms) > tonumber(scope.now) then
        seen[item.key] = item.owner
      end
      if READY[item.head.state] then
        watch(scope, item.head)
      end
    end
  end
  if #fresh == 0 then
    return {'ok', scope.at_ms, answers, {}}
  end
  for _, item in ipairs(fresh) do
    write_new(scope, args, item)
  end
  return {'ok', scope.at_ms, answers, close(scope, args[4])}
end)
