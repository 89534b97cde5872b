-- Who works on which flow, and parts of a graph in one moment.

local UUID_BYTES = 36
-- Names and texts of lines.
local function read_lines(base, flow, names)
  local lines = {}
  for first = 1, #names, CELLS_MAX do
    local last = math.min(first + CELLS_MAX - 1, #names)
    local texts = call('HMGET', base .. ':line:' .. flow, unpack(names, first, last))
    for place = first, last do
      lines[#lines + 1] = {names[place], texts[place - first + 1] or ''}
    end
  end
  return lines
end

-- The oldest lines whose time has come.
local function due_lines(base, flow, now_ms, limit)
  local key, later = base .. ':lines:' .. flow, base .. ':later:' .. flow
  if call('ZCARD', later) == 0 then
    return read_lines(base, flow, call('ZRANGE', key, 0, limit - 1))
  end
  local names, offset = {}, 0
  while #names < limit do
    local some = call('ZRANGE', key, offset, offset + PAGE - 1)
    for _, name in ipairs(some) do
      local at = tonumber(call('ZSCORE', later, name) or 0)
      if at <= now_ms and #names < limit then
        names[#names + 1] = name
      end
    end
    if #some < PAGE then
      break
    end
    offset = offset + PAGE
  end
  return read_lines(base, flow, names)
end

-- Flows with something to do: argument 4 is the last of the round before, 5 how many are wanted.
-- Answers ids in the order of the round, and when the first of all has its time.
register('flows', function(keys, args)
  local scope = open(keys[1], args)
  local key = scope.base .. ':flows'
  local ids = call('ZRANGEBYSCORE', key, '-inf', args[1])
  table.sort(ids)
  local rest, chosen, limit = {}, {}, tonumber(args[5])
  for _, id in ipairs(ids) do
    local list = id > args[4] and chosen or rest
    if #list < limit then
      list[#list + 1] = id
    end
  end
  append(chosen, rest)
  return {whole(tonumber(scope.version) - 1), as_score(first_score(key)), chosen}
end, READ_ONLY)

-- Arguments 6 and 7: namespace and name, each nothing if any will do; from 9 on states, any if none.
local function flow_fits(key, args)
  local cells = call('HMGET', key, 'namespace', 'name', 'state', 'is_open')
  if cells[4] == '0' then
    return false
  end
  if (args[6] ~= '' and args[6] ~= cells[1]) or (args[7] ~= '' and args[7] ~= cells[2]) then
    return false
  end
  for position = 9, #args do
    if args[position] == (cells[3] or 'open') then
      return true
    end
  end
  return #args < 9
end

-- Flows that fit, by id after argument 4, at most argument 5, of all or (argument 8) of those that
-- are not settled; answers them, and after which id to go on if there may be more.
register('flow_find', function(keys, args)
  local base = open(keys[1], args).base
  local limit, rows, last = tonumber(args[5]), {}, ''
  local after = args[4] == '' and '-' or '(' .. args[4]
  local index = base .. (args[8] == '1' and ':unsettled' or ':flow_ids')
  local ids = call('ZRANGEBYLEX', index, after, '+', 'LIMIT', 0, PAGE)
  for _, id in ipairs(ids) do
    if #rows == limit then
      return {last, rows}
    end
    last = id
    local key = base .. ':flow:' .. id
    local cells = flow_fits(key, args) and call('HGETALL', key) or {}
    -- An entry without a record is told of: nobody knows what it would fit.
    if #cells > 0 or call('EXISTS', key) == 0 then
      rows[#rows + 1] = {id, cells}
    end
  end
  return {#ids < PAGE and '' or last, rows}
end, READ_ONLY)

local function is_due(base, flow, now_ms)
  local at = call('HGET', base .. ':flow:' .. flow, 'due_ms')
  return at and (tonumber(at) or 0) <= now_ms
end

-- Take those of the flows from argument 7 on that have something to do, until argument 5; answers
-- them with at most argument 6 lines each. One that only the index says to have something is put
-- where it belongs.
register('flow_take', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local base, now_ms, limit, rows = scope.base, tonumber(args[1]), tonumber(args[6]), {}
  for position = 7, #args do
    local id = args[position]
    local at = call('ZSCORE', base .. ':flows', id)
    if at and tonumber(at) <= now_ms then
      local cells, lines = call('HGETALL', base .. ':flow:' .. id), due_lines(base, id, now_ms, limit)
      if #lines > 0 or is_due(base, id, now_ms) then
        rows[#rows + 1] = {id, cells, lines}
      else
        scope.flows[id] = true
      end
    end
  end
  if #rows == 0 and next(scope.flows) == nil then
    return {'ok', scope.at_ms, rows, {}}
  end
  for _, row in ipairs(rows) do
    call('HSET', base .. ':flow:' .. row[1], 'busy_until_ms', args[5])
    gather(scope.added, ':flows', args[5], row[1])
  end
  -- What was the first to do is now done later, if anything: there is nothing to tell.
  return {'ok', scope.at_ms, rows, close(scope, args[4])}
end)

local function read_ids(args, position)
  local ids, count = {}, tonumber(args[position])
  for place = 1, count do
    ids[place] = args[position + place]
  end
  return ids, position + count + 1
end

-- A page of members: after which, how many, and in which states, if it matters.
local function member_page(base, flow, after, limit, states)
  local wanted, found = {}, {}
  for _, state in ipairs(states) do
    wanted[state] = true
  end
  local key, low = base .. ':members:' .. flow, after == '' and '-' or '(' .. after
  while #found < limit do
    local some = call('ZRANGEBYLEX', key, low, '+', 'LIMIT', 0, PAGE)
    local texts = #states > 0 and read_texts(base, some)
    for place, uuid in ipairs(some) do
      if #found == limit then
        break
      end
      if not texts or (texts[place] and wanted[read_row(texts[place]).state]) then
        found[#found + 1] = uuid
      end
    end
    if #some < PAGE then
      break
    end
    low = '(' .. some[#some]
  end
  return found
end

local function include(set, id)
  if not set[id] then
    set[id] = true
    set[#set + 1] = id
  end
end

local function include_all(set, ids)
  for _, id in ipairs(ids) do
    include(set, id)
  end
end

-- Pending edges of these upstreams of a flow, which are in order, as many as wanted.
local function read_leaving(base, flow, view, upstreams, limit)
  for _, upstream in ipairs(upstreams) do
    if #view.edges >= limit then
      return
    end
    local names = call('ZRANGEBYLEX', base .. ':leaving:' .. flow, '[' .. upstream .. ':',
      '(' .. upstream .. ';', 'LIMIT', 0, limit - #view.edges)
    for _, name in ipairs(names) do
      local entry = string.sub(name, #upstream + 2)
      local downstream = string.sub(entry, 1, UUID_BYTES)
      local field = upstream .. ':' .. string.sub(entry, UUID_BYTES + 2)
      local texts = call('HMGET', base .. ':edges:' .. downstream,
        'edge:' .. field, 'end:' .. field)
      local cells = {'edge:' .. field, texts[1] or ''}
      append(cells, texts[2] and {'end:' .. field, texts[2]} or {})
      view.edges[#view.edges + 1] = {downstream, cells}
      include(view.groups, downstream)
      include(view.heads, downstream)
    end
  end
end

-- Every edge with one of these downstreams; their upstreams are looked at if it is wanted.
local function read_entering(base, view, downstreams, is_with_ends)
  for _, downstream in ipairs(downstreams) do
    local cells = call('HGETALL', base .. ':edges:' .. downstream)
    if #cells > 0 then
      view.edges[#view.edges + 1] = {downstream, cells}
    end
    for place = 1, is_with_ends and #cells or 0, 2 do
      local upstream = string.match(cells[place], '^edge:(.*)')
      if upstream then
        include(view.heads, string.sub(upstream, 1, UUID_BYTES))
      end
    end
  end
end

local function read_each(base, kind, ids)
  local rows = {}
  for _, id in ipairs(ids) do
    local cells = call('HGETALL', base .. kind .. id)
    if #cells > 0 then
      rows[#rows + 1] = {id, cells}
    end
  end
  return rows
end

local function read_heads(base, ids)
  local rows = {}
  for place, text in ipairs(read_texts(base, ids)) do
    if text then
      rows[#rows + 1] = {ids[place], text}
    end
  end
  return rows
end

-- States and how many members are in each.
local function tally_cells(key)
  local cells = {}
  for state, number in pairs(read_tally(call('GET', key))) do
    append(cells, {state, text_of(tonumber(number) or 0)})
  end
  return cells
end

-- Argument 4 is the flow, 5 how many of the oldest lines whose time has come at 6 (below zero: all
-- lines), 7 to 10 are whether the whole graph, ends, members and how many are in each state are
-- wanted, 11 is how many edges, then lists: heads, leaving, entering, groups, and for members where
-- to begin, how many, and a list of states.
register('graph', function(keys, args)
  local base, flow = visit(keys[1]), args[4]
  local row = call('HGETALL', base .. ':flow:' .. flow)
  if #row == 0 then
    return {}
  end
  local heads, leaving, entering, groups, states, position
  heads, position = read_ids(args, 12)
  leaving, position = read_ids(args, position)
  entering, position = read_ids(args, position)
  groups, position = read_ids(args, position)
  local view, members, lines = {edges = {}, groups = {}, heads = {}}, {}, {}
  include_all(view.heads, heads)
  include_all(view.groups, groups)
  read_leaving(base, flow, view, leaving, tonumber(args[11]))
  read_entering(base, view, entering, args[8] == '1')
  include_all(view.groups, entering)
  if args[9] == '1' then
    states = read_ids(args, position + 2)
    members = member_page(base, flow, args[position], tonumber(args[position + 1]), states)
    include_all(view.heads, members)
  end
  if args[7] == '1' then
    local everybody = call('ZRANGE', base .. ':members:' .. flow, 0, -1)
    append(view.edges, read_each(base, ':edges:', everybody))
  end
  local wanted = tonumber(args[5])
  if wanted < 0 then
    lines = read_lines(base, flow, call('ZRANGE', base .. ':lines:' .. flow, 0, -1))
  elseif wanted > 0 then
    lines = due_lines(base, flow, tonumber(args[6]), wanted)
  end
  return {
    row, view.edges, read_each(base, ':groups:', view.groups), read_heads(base, view.heads),
    members, lines, args[10] == '1' and tally_cells(base .. ':tally:' .. flow) or {},
  }
end, READ_ONLY)
