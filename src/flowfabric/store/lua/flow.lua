-- Changesets of flows and executions of one partition.
--
-- A flow is a hash of columns. Edges and groups are kept with who waits for them, as texts that
-- only readers understand: `edge:<upstream>:<group>` is how an edge was drawn and
-- `end:<upstream>:<group>` what became of it. Pending edges are also indexed by their upstream.
-- Flows with something to do are in one sorted set, by the time from which somebody may do it.

-- How many there are, then that many cells each.
local function read_list(args, position, width)
  local count = tonumber(args[position]) * width
  local past = position + 1 + count
  return {first = position + 1, past = past - 1, width = width, count = count}, past
end

local function read_flow(args, position)
  if args[position] == '' then
    return nil, position + 1
  end
  local flow = {id = args[position], rev = args[position + 1]}
  flow.set, position = read_list(args, position + 2, 2)
  flow.gone, position = read_list(args, position, 1)
  return flow, position
end

local function read_changeset(scope, args, position, shapes, templates)
  local set = {changes = {}, members = {}}
  local count = tonumber(args[position])
  position = position + 1
  for number = 1, count do
    set.changes[number], position = read_change(args, position, shapes)
  end
  count = tonumber(args[position])
  position = position + 1
  for number = 1, count do
    set.members[number], position = read_item(scope, args, position, templates)
  end
  set.flow, position = read_flow(args, position)
  set.edges, position = read_list(args, position, 6)
  set.groups, position = read_list(args, position, 3)
  set.done, position = read_list(args, position, 2)
  set.lines, position = read_list(args, position, LINE_CELLS)
  set.notes, position = read_list(args, position, 3)
  return set, position
end

-- Whether everything is as it was seen; a revision of nothing means that the flow must be new.
local function flow_holds(base, flow)
  local cells = call('HMGET', base .. ':flow:' .. flow.id, 'created_ms', 'rev')
  if flow.rev == '' then
    return not cells[1]
  end
  return cells[1] and (cells[2] or '1') == flow.rev
end

local function set_holds(scope, set, seen)
  if set.flow and not flow_holds(scope.base, set.flow) then
    return false
  end
  for _, item in ipairs(set.changes) do
    if not holds(item) then
      return false
    end
  end
  for _, item in ipairs(set.members) do
    if seen[item.uuid] then
      return false
    end
  end
  for _, item in ipairs(set.members) do
    seen[item.uuid] = true
  end
  return true
end

-- What indexes of flows go by: whether nothing is left to look after, when a flow may go, and when
-- somebody may do something about it.
local WAKING = {parked = true, due_ms = true, busy_until_ms = true, next_try_ms = true}

local function index_flow(scope, args, flow)
  local unsettled, going = scope.base .. ':unsettled', scope.base .. ':going'
  for position = flow.set.first, flow.set.past, 2 do
    local name = args[position]
    if name == 'settled' then
      gather(scope.removed, unsettled, flow.id)
    elseif name == 'purge_ms' then
      gather(scope.added, going, args[position + 1], flow.id)
    elseif WAKING[name] then
      scope.flows[flow.id] = true
    end
  end
  for position = flow.gone.first, flow.gone.past do
    local name = args[position]
    if name == 'settled' then
      gather(scope.added, unsettled, '0', flow.id)
    elseif name == 'purge_ms' then
      gather(scope.removed, going, flow.id)
    elseif WAKING[name] then
      scope.flows[flow.id] = true
    end
  end
end

local function write_flow(scope, args, flow)
  local key, set, gone = scope.base .. ':flow:' .. flow.id, flow.set, flow.gone
  if flow.rev == '' then
    call('HSET', key, slice(args, set.first, set.count))
    call('ZADD', scope.base .. ':flow_ids', 0, flow.id)
    call('ZADD', scope.base .. ':unsettled', 0, flow.id)
  else
    call('HSET', key, 'rev', whole((tonumber(flow.rev) or 0) + 1),
      slice(args, set.first, set.count))
  end
  if gone.count > 0 then
    call('HDEL', key, slice(args, gone.first, gone.count))
  end
  index_flow(scope, args, flow)
end

-- Downstream, upstream, group, how it was drawn (nothing: it must be there), whether it is pending,
-- and what became of it.
local function write_edge(scope, downstream, upstream, group, drawn, is_pending, ended)
  local key, name = scope.base .. ':edges:' .. downstream, upstream .. ':' .. group
  local is_new = false
  if drawn ~= '' then
    is_new = call('HSET', key, 'edge:' .. name, drawn) == 1
  elseif call('HEXISTS', key, 'edge:' .. name) == 0 then
    return
  end
  if ended ~= '' then
    call('HSET', key, 'end:' .. name, ended)
  elseif not is_new then
    call('HDEL', key, 'end:' .. name)
  end
  local leaving = scope.base .. ':leaving:' .. upstream
  if is_pending == '1' then
    call('ZADD', leaving, 0, downstream .. ':' .. group)
  else
    call('ZREM', leaving, downstream .. ':' .. group)
  end
end

local function write_note(scope, uuid, kind, detail)
  local key = scope.base .. ':x:' .. uuid
  local text = scope.texts[uuid] or call('GET', key)
  local front, last = front_of(text or '')
  local row = read_front(front)
  if row.is_broken then
    return
  end
  row.count = row.count + 1
  local plan = {row = row, state = row.state, moves = {}, columns = '', front = write_front(row)}
  plan.is_long = row.count > PAIRS_MAX
  say(scope, plan, kind, detail)
  follow(scope, uuid, key, plan, part_of(text, last + 1))
end

local function each(args, list, write_one, scope)
  for position = list.first, list.past, list.width do
    write_one(scope, slice(args, position, list.width))
  end
end

local function write_group(scope, downstream, name, text)
  call('HSET', scope.base .. ':groups:' .. downstream, name, text)
end

local function write_set(scope, args, set)
  for _, item in ipairs(set.members) do
    write_new(scope, args, item)
  end
  for _, item in ipairs(set.changes) do
    write(scope, args, item)
  end
  if set.flow then
    write_flow(scope, args, set.flow)
  end
  each(args, set.edges, write_edge, scope)
  each(args, set.groups, write_group, scope)
  each(args, set.done, remove_line, scope)
  for position = set.lines.first, set.lines.past, LINE_CELLS do
    put_line(scope, read_line(args, position))
  end
  each(args, set.notes, write_note, scope)
end

-- What has to be known of a changeset that will be written.
local function prepare_set(scope, set)
  for _, item in ipairs(set.changes) do
    prepare(scope, item)
  end
  for _, item in ipairs(set.members) do
    prepare_new(scope, item.template)
  end
end

-- Arguments from 5 on: shapes of changes, templates of members, then changesets. Each is written
-- whole or not at all; answers 1 or 0 for each.
register('commit', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local shapes, templates, position
  shapes, position = read_shapes(args, 5)
  templates, position = read_templates(args, position)
  local sets, members, changes = {}, {}, {}
  while position <= #args do
    local set
    set, position = read_changeset(scope, args, position, shapes, templates)
    sets[#sets + 1] = set
    append(members, set.members)
    append(changes, set.changes)
  end
  read_changes(scope, changes)
  local seen, answers, good = look_for_ids(scope, members), {}, {}
  for number, set in ipairs(sets) do
    local is_good = set_holds(scope, set, seen)
    answers[number] = is_good and 1 or 0
    if is_good then
      prepare_set(scope, set)
      good[#good + 1] = set
    end
  end
  if #good == 0 then
    return {'ok', scope.at_ms, answers, {}}
  end
  for _, set in ipairs(good) do
    write_set(scope, args, set)
  end
  return {'ok', scope.at_ms, answers, close(scope, args[4])}
end)
