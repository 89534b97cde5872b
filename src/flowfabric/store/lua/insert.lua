-- New executions with their bodies, tags and keys, all of one partition.

-- What is known of an item before anything is written: nothing, its id, or the owner of its key.
local function known(scope, item, seen)
  if item.key ~= '' then
    local owner = seen[item.record]
    if owner == nil then
      local cells = redis.call('HMGET', item.record, 'id', 'digest', 'until_ms')
      local is_alive = cells[1] and tonumber(cells[3]) > tonumber(scope.now)
      owner = is_alive and {cells[1], cells[2]} or false
      seen[item.record] = owner
    end
    if owner then
      return owner
    end
  end
  if seen[item.uuid] == nil then
    seen[item.uuid] = redis.call('EXISTS', scope.base .. ':x:' .. item.uuid) == 1
  end
  return seen[item.uuid] and 0 or nil
end

local function read_items(scope, args)
  local items, position = {}, 5
  while position <= #args do
    local item = {
      uuid = args[position], payload = args[position + 1],
      namespace = args[position + 2], lane = args[position + 3], state = args[position + 4],
      priority = args[position + 5], created_ms = args[position + 6],
      due = args[position + 7] ~= '' and args[position + 7] or false,
      key = args[position + 8], digest = args[position + 9], until_ms = args[position + 10],
      fields = position + 13, field_count = tonumber(args[position + 11]),
      tag_count = tonumber(args[position + 12]),
    }
    item.record = scope.base .. ':key:' .. #item.namespace .. ':' .. item.namespace .. ':' .. item.key
    item.tags = item.fields + item.field_count
    position = item.tags + item.tag_count
    items[#items + 1] = item
  end
  return items
end

local function write_new(scope, args, item)
  local base, uuid = scope.base, item.uuid
  redis.call('HSET', base .. ':x:' .. uuid, slice(args, item.fields, item.field_count))
  redis.call('SET', base .. ':payload:' .. uuid, item.payload)
  if item.tag_count > 0 then
    redis.call('HSET', base .. ':tags:' .. uuid, slice(args, item.tags, item.tag_count))
  end
  if item.key ~= '' then
    local id = string.match(base, '{.*}') .. ':' .. uuid
    redis.call('HSET', item.record, 'id', id, 'digest', item.digest, 'until_ms', item.until_ms)
    if args[2] == '' then
      redis.call('PEXPIREAT', item.record, item.until_ms)
    end
  end
  index(scope, uuid, {due = false}, item)
  log(scope, uuid, 'submitted', item, '{}')
end

-- Arguments 5 and on: thirteen cells for each item, then its columns and its tags.
register('insert', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local items, seen, answers, fresh = read_items(scope, args), {}, {}, {}
  for number, item in ipairs(items) do
    local answer = known(scope, item, seen)
    answers[number] = answer or 1
    if answer == nil then
      fresh[#fresh + 1] = item
      seen[item.uuid] = true
      if item.key ~= '' and tonumber(item.until_ms) > tonumber(scope.now) then
        seen[item.record] = {string.match(scope.base, '{.*}') .. ':' .. item.uuid, item.digest}
      end
      if READY[item.state] then
        watch(scope, item.namespace, item.lane)
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
