-- New executions with their bodies, tags and keys, all of one partition.
--
-- What many have in common is sent once, as a template of columns. A small payload is one of them;
-- a larger one, which must not be written again with every change, has a key of its own.

local INLINE_BYTES_MAX = 256

-- Templates are what functions look at, their columns as they are kept, and how many they are; and
-- the plans and the queue that are worked out for them.
local function read_templates(templates)
  for _, template in ipairs(templates) do
    template.plans, template.queue = {}, READY[template.row.state] and queue_of(template.row)
  end
  return templates
end

-- Those with their payload or their key among their columns have more of them.
local function new_plan(scope, template, more)
  local row = template.row
  row.count = template.count + 1 + more
  local plan = plan_of(row, NOWHERE)
  plan.front, plan.columns = write_front(row), template.columns
  say(scope, plan, 'submitted', '{}')
  return plan
end

local function read_item(scope, cells, position, templates)
  local uuid, template = cells[position], cells[position + 3]
  local item = {
    uuid = uuid, payload = cells[position + 1], flow = '', home = cells[position + 2],
    key = scope.base .. ':x:' .. uuid, template = templates[math.abs(template)],
    is_looked_for = template < 0, extra = position + 5, extra_count = cells[position + 4],
    bound = false,
  }
  if item.extra_count > 0 and cells[item.extra] ~= '' then
    local namespace = item.template.row.namespace
    item.name, item.digest, item.until_ms = slice(cells, item.extra, 3)
    item.bound = scope.base .. ':key:' .. queue_name(namespace, item.name)
    item.owner = {id_of(scope, item.uuid), item.digest}
  end
  return item, item.extra + item.extra_count
end

-- Look at once whether any of the ids is there; only then at each.
local function look_for_ids(items)
  local keys, seen = {}, {}
  for number, item in ipairs(items) do
    keys[number] = item.key
  end
  if #keys > 0 and call('EXISTS', unpack(keys)) > 0 then
    for _, key in ipairs(keys) do
      seen[key] = call('EXISTS', key) == 1
    end
  end
  return seen
end

-- What is known of an item before anything is written: nothing, its id, or the owner of its key.
local function owner_of(scope, item, seen)
  local bound = item.bound
  if bound and seen[bound] == nil then
    local cells = call('HMGET', bound, 'id', 'digest', 'until_ms')
    -- One whose end cannot be read is alive: nobody may take it from its owner.
    local until_ms = tonumber(cells[3] or '')
    local is_known = cells[1] or cells[2] or cells[3]
    local is_alive = is_known and (not until_ms or until_ms > tonumber(scope.now))
    seen[bound] = is_alive and {cells[1], cells[2]} or false
  end
  if bound and seen[bound] then
    return seen[bound]
  end
  return seen[item.key] and 0 or nil
end

local function write_key(scope, item)
  call('HSET', item.bound, 'id', item.owner[1], 'digest', item.digest, 'until_ms', item.until_ms)
  if not scope.is_fixed then
    call('PEXPIREAT', item.bound, item.until_ms)
  end
end

local function prepare_new(scope, template)
  if template.queue then
    watch(scope, template.queue)
  end
end

local function write_new(scope, cells, item)
  local base, uuid, payload = scope.base, item.uuid, item.payload
  local template = item.template
  local is_small = #payload <= INLINE_BYTES_MAX
  local more = (is_small and 1 or 0) + (item.bound and 1 or 0)
  local plan = template.plans[more] or new_plan(scope, template, more)
  template.plans[more] = plan
  local body = item.bound and pack('key', item.name) or ''
  follow(scope, plan, item, body, is_small and payload)
  if not is_small then
    put(scope.values, base .. ':payload:' .. uuid, payload)
  end
  if item.extra_count > 3 then
    call('HSET', base .. ':tags:' .. uuid, slice(cells, item.extra + 3, item.extra_count - 3))
  end
  if item.bound then
    write_key(scope, item)
  end
end

-- Argument 5 is a list: the templates, then items: id, payload, flow, template (below zero: only
-- look for it), and how many more cells: key, digest, end of the key, tags. Answers of items: 1 for
-- a new one, 0 for one that is there, -1 for one that is not, or the owner and digest of its key.
register('insert', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local items, cells, position = {}, cmsgpack.unpack(args[5]), 2
  local templates = read_templates(cells[1])
  while position <= #cells do
    items[#items + 1], position = read_item(scope, cells, position, templates)
  end
  local seen, answers, fresh = look_for_ids(items), {}, {}
  for number, item in ipairs(items) do
    local answer = owner_of(scope, item, seen)
    answers[number] = answer or (item.is_looked_for and -1 or 1)
    if answer == nil and not item.is_looked_for then
      fresh[#fresh + 1] = item
      seen[item.key] = true
      if item.bound and item.until_ms > tonumber(scope.now) then
        seen[item.bound] = item.owner
      end
      prepare_new(scope, item.template)
    end
  end
  if #fresh == 0 then
    return {'ok', scope.at_ms, answers, {}}
  end
  for _, item in ipairs(fresh) do
    write_new(scope, cells, item)
  end
  return {'ok', scope.at_ms, answers, close(scope, args[4])}
end)
