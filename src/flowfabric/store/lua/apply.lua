-- Guarded patches of executions of one partition: each by itself, or all or none.

local GUARDED = {
  'rev', 'state', 'epoch', 'lease_token', 'reason', 'lease_until_ms', 'namespace', 'lane',
  'priority', 'created_ms', 'due_ms', 'attempt',
}

local function read_head(base, uuid)
  local cells = redis.call('HMGET', base .. ':x:' .. uuid, unpack(GUARDED))
  if not cells[2] then
    return nil
  end
  return {
    rev = cells[1] or '1', state = cells[2], epoch = cells[3] or '0', token = cells[4] or '',
    reason = cells[5], until_ms = tonumber(cells[6]), namespace = cells[7] or '',
    lane = cells[8] or '', priority = cells[9] or '0', created_ms = cells[10],
    due = cells[11], attempt = cells[12],
  }
end

local function holds(scope, item, head)
  if item.guard == 'seen' then
    return head.rev == item.first
  end
  return head.state == 'active' and head.epoch == item.first and head.token == item.token
    and (head.reason ~= 'granted') == (item.started == '1')
    and head.until_ms ~= nil and head.until_ms > scope.at_ms
end

-- A patch: how many cells are set, those, how many columns go back to their default, those.
local function read_patch(args, position)
  local patch = {first = position + 1, count = tonumber(args[position]), values = {}}
  for cell = patch.first, position + patch.count, 2 do
    patch.values[args[cell]] = args[cell + 1]
  end
  local gone = patch.first + patch.count
  patch.gone, patch.gone_count = gone + 1, tonumber(args[gone])
  for cell = patch.gone, gone + patch.gone_count do
    patch.values[args[cell]] = false
  end
  return patch, gone + 1 + patch.gone_count
end

local function read_attempt(args, position)
  local attempt = {
    number = args[position], kind = args[position + 1], started_ms = args[position + 2],
    worker = args[position + 3], epoch = args[position + 4],
  }
  attempt.cells, position = read_patch(args, position + 5)
  return attempt, position
end

local function read_item(args, position)
  local item = {
    uuid = args[position], guard = args[position + 1], first = args[position + 2],
    token = args[position + 3], started = args[position + 4], patch = tonumber(args[position + 5]),
    line = args[position + 6], detail = args[position + 7],
    tag_count = tonumber(args[position + 8]), tags = position + 10,
  }
  local has_attempt = args[position + 9] == '1'
  position = item.tags + item.tag_count
  if has_attempt then
    item.attempt, position = read_attempt(args, position)
  end
  return item, position
end

-- How and when an attempt began is never overwritten, who worked on it only by somebody who did.
local function write_attempt(scope, args, uuid, attempt)
  local key = scope.base .. ':attempt:' .. uuid .. ':' .. attempt.number
  local cells = attempt.cells
  if redis.call('HSETNX', key, 'kind', attempt.kind) == 1 then
    redis.call('HSET', key, 'worker', attempt.worker, 'epoch', attempt.epoch)
    if attempt.started_ms ~= '' then
      redis.call('HSET', key, 'started_ms', attempt.started_ms)
    end
  else
    if attempt.worker ~= '' then
      redis.call('HSET', key, 'worker', attempt.worker, 'epoch', attempt.epoch)
    end
    if cells.gone_count > 0 then
      redis.call('HDEL', key, slice(args, cells.gone, cells.gone_count))
    end
  end
  redis.call('HSET', key, slice(args, cells.first, cells.count))
end

local function changed(head, patch)
  local values = patch.values
  local function after(name, before)
    if values[name] == nil then
      return before
    end
    return values[name]
  end
  return {
    state = after('state', head.state), namespace = head.namespace, lane = head.lane,
    priority = after('priority', head.priority) or '0', created_ms = head.created_ms,
    due = after('due_ms', head.due), attempt = after('attempt', head.attempt),
    epoch = after('epoch', head.epoch),
  }
end

local function write(scope, args, item)
  local key, patch, head = scope.base .. ':x:' .. item.uuid, item.patch, item.head
  local rev = whole((tonumber(head.rev) or 0) + 1)
  redis.call('HSET', key, 'rev', rev, slice(args, patch.first, patch.count))
  if patch.gone_count > 0 then
    redis.call('HDEL', key, slice(args, patch.gone, patch.gone_count))
  end
  index(scope, item.uuid, head, item.after)
  if item.attempt then
    write_attempt(scope, args, item.uuid, item.attempt)
  end
  if item.tag_count > 0 then
    redis.call('HSET', scope.base .. ':tags:' .. item.uuid, slice(args, item.tags, item.tag_count))
  end
  if item.line ~= '' then
    log(scope, item.uuid, item.line, item.after, item.detail)
  end
end

local function read_all(args)
  local patches, position = {}, 7
  for number = 1, tonumber(args[6]) do
    patches[number], position = read_patch(args, position)
  end
  local items = {}
  while position <= #args do
    local item
    item, position = read_item(args, position)
    item.patch = patches[item.patch]
    items[#items + 1] = item
  end
  return items
end

-- Arguments: 5 says all or none, 6 how many different patches follow, then the items.
register('apply', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local good, refused = {}, {}
  for number, item in ipairs(read_all(args)) do
    item.head = read_head(scope.base, item.uuid)
    if item.head and holds(scope, item, item.head) then
      item.after = changed(item.head, item.patch)
      if READY[item.head.state] or READY[item.after.state] then
        watch(scope, item.head.namespace, item.head.lane)
      end
      good[#good + 1] = item
    else
      local row = item.head and redis.call('HGETALL', scope.base .. ':x:' .. item.uuid) or {}
      refused[#refused + 1] = {number - 1, row}
    end
  end
  if #good == 0 or (args[5] == '1' and #refused > 0) then
    return {'ok', scope.at_ms, refused, {}}
  end
  for _, item in ipairs(good) do
    write(scope, args, item)
  end
  return {'ok', scope.at_ms, refused, close(scope, args[4])}
end)
