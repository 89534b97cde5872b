-- Changesets of flows and executions of one partition.
--
-- A flow is a hash of columns. Edges and groups are kept with who waits for them, as texts that
-- only readers understand: `edge:<upstream>:<group>` is how an edge was drawn and
-- `end:<upstream>:<group>` what became of it. Pending edges of a flow are also in one sorted set,
-- as `<upstream>:<downstream>:<group>`.
-- Flows with something to do are in one sorted set, by the time from which somebody may do it.

-- How many there are, then that many cells each: where they begin, how many cells they are, and
-- what comes after them.
local function read_list(cells, position, width)
  local first, count = position + 1, cells[position] * width
  return first, count, first + count
end

-- The columns of a flow that are set, and those that go back to what is usual.
local function read_flow(cells, position)
  if cells[position] == '' then
    return nil, position + 1
  end
  local flow = {
    id = cells[position], rev = cells[position + 1], first = 0, count = 0, gone = 0, gone_count = 0,
  }
  flow.first, flow.count, position = read_list(cells, position + 2, 2)
  flow.gone, flow.gone_count, position = read_list(cells, position, 1)
  return flow, position
end

-- Changes and members go to those of all changesets; the last part of a changeset, how many cells
-- it has and those, is read when it is written.
local function read_changeset(scope, position, read)
  local cells, changes, members = read.cells, read.changes, read.members
  local set = {
    scope = scope, first_change = #changes + 1, last_change = 0, first_member = #members + 1,
    last_member = 0, flow = false, rest = 0, past = 0,
  }
  set.last_change = #changes + cells[position]
  position = position + 1
  for number = set.first_change, set.last_change do
    changes[number], position = read_change(scope, cells, position, read.shapes)
  end
  set.last_member = #members + cells[position]
  position = position + 1
  for number = set.first_member, set.last_member do
    members[number], position = read_item(scope, cells, position, read.templates)
  end
  set.flow, position = read_flow(cells, position)
  set.rest, set.past = position + 1, position + 1 + cells[position]
  return set, set.past
end

-- Whether everything is as it was seen; a revision of nothing means that the flow must be new, and
-- one of '*' that it must be there, however it is.
local function flow_holds(base, id, rev)
  local cells = call('HMGET', base .. ':flow:' .. id, 'created_ms', 'rev')
  if rev == '' then
    return not cells[1]
  end
  return cells[1] and (rev == '*' or (cells[2] or '1') == text_of(rev))
end

local function set_holds(set, read, seen)
  local flow = set.flow
  if flow and not flow_holds(set.scope.base, flow.id, flow.rev) then
    return false
  end
  for number = set.first_change, set.last_change do
    if not holds(read.changes[number]) then
      return false
    end
  end
  for number = set.first_member, set.last_member do
    if seen[read.members[number].key] then
      return false
    end
  end
  for number = set.first_member, set.last_member do
    seen[read.members[number].key] = true
  end
  return true
end

-- What is known of how many members are in each state, for all of the flows at once.
local function read_tallies(sets)
  local keys, flows = {}, {}
  for _, set in ipairs(sets) do
    if set.flow then
      keys[#keys + 1], flows[#flows + 1] = set.scope.base .. ':tally:' .. set.flow.id, set
    end
  end
  for place, text in ipairs(read_all(keys)) do
    flows[place].scope.tallies[flows[place].flow.id] = text or ''
  end
end

-- What indexes of flows go by: whether nothing is left to look after, when a flow may go, and when
-- somebody may do something about it.
local WAKING = {parked = true, due_ms = true, busy_until_ms = true, next_try_ms = true}

-- Answers whether it has just become settled.
local function index_flow(scope, cells, flow)
  local is_settled = false
  for position = flow.first, flow.first + flow.count - 1, 2 do
    local name = cells[position]
    if WAKING[name] then
      scope.flows[flow.id] = true
    elseif name == 'settled' then
      gather(scope.removed, ':unsettled', flow.id)
      is_settled = true
    elseif name == 'purge_ms' then
      gather(scope.added, ':going', cells[position + 1], flow.id)
    end
  end
  for position = flow.gone, flow.gone + flow.gone_count - 1 do
    local name = cells[position]
    if WAKING[name] then
      scope.flows[flow.id] = true
    elseif name == 'settled' then
      gather(scope.added, ':unsettled', '0', flow.id)
    elseif name == 'purge_ms' then
      gather(scope.removed, ':going', flow.id)
    end
  end
  return is_settled
end

local function write_flow(scope, cells, flow)
  local key = scope.base .. ':flow:' .. flow.id
  if flow.rev == '' then
    call('HSET', key, slice(cells, flow.first, flow.count))
    gather(scope.added, ':flow_ids', '0', flow.id)
  else
    call('HSET', key, 'rev', text_of(flow.rev + 1),
      slice(cells, flow.first, flow.count))
  end
  if flow.gone_count > 0 then
    call('HDEL', key, slice(cells, flow.gone, flow.gone_count))
  end
  local is_settled = index_flow(scope, cells, flow)
  if flow.rev == '' and not is_settled then
    gather(scope.added, ':unsettled', '0', flow.id)
  end
end

-- Flow, downstream, upstream, group, how it was drawn (then it is left alone if it is there; nothing:
-- it must be there), whether it is pending, and what became of it.
local function write_edge(scope, flow, downstream, upstream, group, drawn, is_pending, ended)
  local key, name = scope.base .. ':edges:' .. downstream, upstream .. ':' .. group
  local index, entry = ':leaving:' .. flow, upstream .. ':' .. downstream .. ':' .. group
  local is_written
  if drawn ~= '' then
    is_written = call('HSETNX', key, 'edge:' .. name, drawn) == 1
  else
    -- One that was pending is there.
    is_written = (is_pending ~= 1 and call('ZREM', scope.base .. index, entry) == 1)
      or call('HEXISTS', key, 'edge:' .. name) == 1
  end
  if not is_written then
    return
  end
  if ended ~= '' then
    call('HSET', key, 'end:' .. name, ended)
  elseif drawn == '' then
    call('HDEL', key, 'end:' .. name)
  end
  if is_pending == 1 then
    gather(scope.added, index, '0', entry)
  end
end

local function write_note(scope, uuid, kind, detail)
  local key = scope.base .. ':x:' .. uuid
  -- It may be one of those that this call has changed.
  write_records(scope.values)
  local text = call('GET', key)
  local front, last, flow = front_of(text or '')
  local row = read_front(front)
  if row.is_broken then
    return
  end
  row.count = row.count + 1
  local plan = plan_for_row(row)
  plan.front, plan.is_long = write_front(row), row.count > PAIRS_MAX
  say(scope, plan, kind, detail)
  local item = {uuid = uuid, key = key, flow = flow, home = flow}
  follow(scope, plan, item, part_of(text, last + 1))
end

local function write_group(scope, downstream, name, text)
  call('HSET', scope.base .. ':groups:' .. downstream, name, text)
end

local SECTIONS = {
  edges = {width = 7, write_one = write_edge},
  groups = {width = 3, write_one = write_group},
  done = {width = 2, write_one = remove_line},
  lines = {width = LINE_CELLS, write_one = put_line},
  notes = {width = 3, write_one = write_note},
}

-- The last part of a changeset: what follows, how many there are, and those.
local function write_rest(scope, cells, position, past)
  while position < past do
    local section = SECTIONS[cells[position]]
    local width, write_one = section.width, section.write_one
    local first, count, after = read_list(cells, position + 1, width)
    for place = first, first + count - 1, width do
      write_one(scope, slice(cells, place, width))
    end
    position = after
  end
end

local function write_set(set, read)
  local scope, cells = set.scope, read.cells
  for number = set.first_member, set.last_member do
    write_new(scope, cells, read.members[number])
  end
  for number = set.first_change, set.last_change do
    write(scope, cells, read.changes[number])
  end
  if set.flow and set.flow.rev ~= '*' then
    write_flow(scope, cells, set.flow)
  end
  write_rest(scope, cells, set.rest, set.past)
end

-- What has to be known of a changeset that will be written.
local function prepare_set(set, read)
  local scope = set.scope
  for number = set.first_change, set.last_change do
    prepare(scope, read.changes[number])
  end
  for number = set.first_member, set.last_member do
    prepare_new(scope, read.members[number].template)
  end
end

-- The changesets of all partitions, or a refusal of one of them. Argument 5 is a list: shapes of
-- changes, templates of members, keys of partitions, and for each of these how many changesets, and
-- those.
local function read_sets(args)
  local shared, cells, position = begin(args), cmsgpack.unpack(args[5]), 4
  local bases, sets, read = cells[3], {}, {
    at_ms = shared.at_ms, values = shared.values, cells = cells, changes = {}, members = {},
    shapes = read_shapes(cells[1]), templates = read_templates(cells[2]),
  }
  for _, base in ipairs(bases) do
    visit(base)
  end
  for place, record in ipairs(read_all(bases)) do
    local scope = opened(bases[place], record, shared)
    if scope.refusal then
      return nil, scope.refusal
    end
    local count = cells[position]
    position = position + 1
    for _ = 1, count do
      sets[#sets + 1], position = read_changeset(scope, position, read)
    end
  end
  read.sets = sets
  return read
end

-- Each changeset is written whole or not at all; answers 1 or 0 for each. All partitions are on this
-- server: in a cluster there is one, that of the declared key.
register('commit', function(_, args)
  local read, refusal = read_sets(args)
  if refusal then
    return refusal
  end
  read_changes(read.changes)
  read_tallies(read.sets)
  local seen, answers, good, scopes = look_for_ids(read.members), {}, {}, {}
  for number, set in ipairs(read.sets) do
    local is_good = set_holds(set, read, seen)
    answers[number] = is_good and 1 or 0
    if is_good then
      prepare_set(set, read)
      good[#good + 1] = set
      if scopes[#scopes] ~= set.scope then
        scopes[#scopes + 1] = set.scope
      end
    end
  end
  for _, set in ipairs(good) do
    write_set(set, read)
  end
  local changes = {}
  for _, scope in ipairs(scopes) do
    finish(scope, changes)
  end
  write_records(read.values)
  return {'ok', read.at_ms, answers, pass_on(args[4], changes)}
end)
