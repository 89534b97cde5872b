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

local NOWHERE = {}

-- A plan has the front and the columns that are to be written, where the id goes in the indexes
-- (their names and scores in turn, no score for those that it leaves), and what the line says. It
-- holds in any partition and for any flow.
local function plan_for_row(row)
  return {
    row = row, state = row.state or '', left_state = row.state or '', front = false, columns = '',
    rev = false, is_long = false, moves = {nil, nil, nil, nil}, size = 0, due_ms = false,
    replaced_ms = false, told = false,
  }
end

local function move(plan, index, score)
  local size = plan.size
  plan.moves[size + 1], plan.moves[size + 2], plan.size = index, score or false, size + 2
end

-- Each index is a function of the row, before and after; a new one was nowhere. One that was found in
-- its ready queue is removed there by the one that looked.
local function plan_of(row, before)
  local plan, class, state = plan_for_row(row), CLASSES[row.state] or OPEN, before.state
  plan.left_state = state or ''
  if not state or class ~= (CLASSES[state] or OPEN) then
    move(plan, ':ids', text_of(class))
  end
  if READY[row.state] then
    move(plan, ready_index(row), place(row))
  elseif READY[state] and not before.is_found then
    move(plan, ready_index(row))
  end
  if before.due_ms ~= row.due_ms then
    move(plan, ':due', row.due_ms and text_of(row.due_ms))
    plan.due_ms, plan.replaced_ms = row.due_ms, before.due_ms
  end
  if before.purge_ms ~= row.purge_ms then
    move(plan, ':purge', row.purge_ms and text_of(row.purge_ms))
  end
  return plan
end

-- A member was in one state of one flow, and is now in another of the same or of another.
local function count_member(scope, item, plan)
  local flow, home = item.flow, item.home
  if flow == home and plan.left_state == plan.state then
    return
  end
  if flow ~= '' then
    count(scope, flow, plan.left_state, -1)
  end
  if home ~= '' then
    count(scope, home, plan.state, 1)
  end
  if home ~= flow and home ~= '' then
    gather(scope.added, ':members:' .. home, '0', item.uuid)
  end
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

-- Write one execution by its plan: its id, its key, the flow it was in and the one it is in; what
-- is kept of it already, behind its front; and a payload if it is new. Answers its text.
local function follow(scope, plan, item, body, payload)
  local uuid, home, moves = item.uuid, item.home, plan.moves
  for number = 1, plan.size, 2 do
    local index, score = moves[number], moves[number + 1]
    if score then
      gather(scope.added, index, score, uuid)
    else
      gather(scope.removed, index, uuid)
    end
  end
  time(scope, plan.due_ms, plan.replaced_ms)
  if home ~= '' or item.flow ~= '' then
    count_member(scope, item, plan)
  end
  local text = string.char(#home) .. home .. (item.front or plan.front) .. body .. plan.columns
    .. own_columns(scope, uuid, plan, payload)
  if plan.is_long then
    text = shortened(text, scope.base .. ':log:' .. uuid)
  end
  put(scope.values, item.key, text)
  return text
end
