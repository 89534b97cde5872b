-- Plans: what becomes of an execution, and where it goes in the indexes.
--
-- A plan is worked out once for all that are equal in what functions look at, and then followed for
-- each of them.

-- Remember when a timer goes off and which one it replaces, to tell afterwards whether it is the
-- first of all.
local function time(scope, due_ms, replaced_ms)
  if due_ms and (not scope.soonest_ms or due_ms < scope.soonest_ms) then
    scope.soonest_ms = due_ms
  end
  if replaced_ms and (not scope.replaced_ms or replaced_ms < scope.replaced_ms) then
    scope.replaced_ms = replaced_ms
  end
end

-- What of a row decides where its id is in the indexes.
local function placed(row)
  return {state = row.state, due_ms = row.due_ms, purge_ms = row.purge_ms, flow = row.flow}
end

local NOWHERE = {flow = ''}

-- By how much it has changed how many members of a flow are in each state.
local function counts_of(scope, flow)
  local counts = scope.tallies[flow] or {}
  scope.tallies[flow] = counts
  return counts
end

local function count(counts, state, by)
  counts[state] = (counts[state] or 0) + by
end

-- A plan has the front and the columns that are to be written, where the id goes in the indexes
-- (sets of cells and scores in turn), and what the line says.
local function plan_for_row(row)
  return {
    row = row, state = row.state or '', front = false, columns = '', rev = false, is_long = false,
    moves = {nil, nil, nil, nil}, size = 0, left = false, left_state = false, entered = false,
    told = false,
  }
end

local function move(plan, cells, score)
  local size = plan.size
  plan.moves[size + 1], plan.moves[size + 2], plan.size = cells, score or false, size + 2
end

local function move_timer(scope, plan, index, at_ms)
  local sets = at_ms and scope.added or scope.removed
  move(plan, cells_of(sets, scope.base .. index), at_ms and text_of(at_ms))
end

local function plan_membership(scope, plan, before, row)
  local flow = row.flow or ''
  if before.flow == flow and (flow == '' or before.state == row.state) then
    return
  end
  if before.flow ~= '' then
    plan.left, plan.left_state = counts_of(scope, before.flow), before.state
  end
  if flow ~= '' then
    plan.entered = counts_of(scope, flow)
  end
  if flow ~= before.flow and flow ~= '' then
    move(plan, cells_of(scope.added, scope.base .. ':members:' .. flow), '0')
  end
end

-- Each index is a function of the row, before and after; a new one was nowhere.
local function plan_of(scope, row, before)
  local plan, class, state = plan_for_row(row), CLASSES[row.state] or OPEN, before.state
  if not state or class ~= (CLASSES[state] or OPEN) then
    move(plan, cells_of(scope.added, scope.base .. ':ids'), text_of(class))
  end
  if READY[row.state] then
    move(plan, cells_of(scope.added, ready_key(scope, row)), place(row))
  elseif READY[state] then
    move(plan, cells_of(scope.removed, ready_key(scope, row)))
  end
  if before.due_ms ~= row.due_ms then
    move_timer(scope, plan, ':due', row.due_ms)
    time(scope, row.due_ms, before.due_ms)
  end
  if before.purge_ms ~= row.purge_ms then
    move_timer(scope, plan, ':purge', row.purge_ms)
  end
  plan_membership(scope, plan, before, row)
  return plan
end

-- What lines of a plan say; a line is in the feed of its partition and in the history of its
-- execution, and known by the write that it came with and its place among its lines.
local function say(scope, plan, kind, detail)
  local row = plan.row
  plan.told = '\t' .. scope.now .. '\t' .. kind .. '\t' .. text_of(row.attempt or -1) .. '\t'
    .. text_of(row.epoch or 0) .. '\t' .. detail
end

-- The line of one execution, for its history.
local function line_of(scope, uuid, plan)
  local lines, state, told = scope.lines, plan.state, plan.told
  put(lines, 'line', state .. '\t' .. uuid .. told)
  return scope.version .. '-' .. text_of(lines.n / 2) .. '\t' .. state .. told
end

-- What is added to the columns of one execution besides those of its plan.
local function own_columns(scope, uuid, plan, payload)
  if payload then
    return pack('payload', payload, 'log', line_of(scope, uuid, plan))
  end
  if plan.rev and plan.told then
    return pack('rev', plan.rev, 'log', line_of(scope, uuid, plan))
  end
  if plan.told then
    return pack('log', line_of(scope, uuid, plan))
  end
  return plan.rev and pack('rev', plan.rev) or ''
end

-- Write one execution by its plan: what is kept of it already, behind its front, and a payload if it
-- is new. Answers its text.
local function follow(scope, uuid, key, plan, body, payload)
  local moves = plan.moves
  for number = 1, plan.size, 2 do
    local cells, score = moves[number], moves[number + 1]
    local size = cells.n + 1
    if score then
      cells[size] = score
      size = size + 1
    end
    cells[size], cells.n = uuid, size
  end
  if plan.left then
    count(plan.left, plan.left_state, -1)
  end
  if plan.entered then
    count(plan.entered, plan.state, 1)
  end
  local text = plan.front .. body .. plan.columns .. own_columns(scope, uuid, plan, payload)
  if plan.is_long then
    text = shortened(text, scope.base .. ':log:' .. uuid)
  end
  put(scope.values, key, text)
  return text
end
