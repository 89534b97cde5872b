-- Documents: small named records of any kind, in the partition that their kind and namespace give.
--
-- A document is a hash. Beside it are a set of the names of its kind and namespace, one for each
-- word, and one of the times of its kind; all follow from the hash.

-- A kind and a namespace within a key; the lengths keep ('a:b', 'c') apart from ('a', 'b:c').
local function shelf_of(kind, namespace)
  return #kind .. ':' .. kind .. ':' .. #namespace .. ':' .. namespace
end

local function key_of(base, shelf, name)
  return base .. ':doc:' .. shelf .. ':' .. name
end

local function words_of(text)
  local is_read, words = pcall(cjson.decode, text or '')
  return is_read and type(words) == 'table' and words or {}
end

-- The revision and the words of a document: 0 if it is not there, -1 if its revision is no number.
local function seen(put)
  local cells = call('HMGET', put.key, 'rev', 'words')
  if not cells[1] and call('EXISTS', put.key) == 0 then
    return '0', false
  end
  local rev = string.match(cells[1] or '', '^%d+$')
  return rev or '-1', cells[2]
end

-- Puts of nine cells each from a place on: kind, namespace, name, revision seen, revision to be, due
-- time, words, whether there is a body, body.
local function read_puts(base, args, first)
  local puts = {}
  for position = first, #args, 9 do
    local kind, namespace, name, rev, next_rev, due_ms, words, has_body, body =
      unpack(args, position, position + 8)
    local shelf = shelf_of(kind, namespace)
    puts[#puts + 1] = {
      kind = kind, shelf = shelf, name = name, rev = rev, next_rev = next_rev, due_ms = due_ms,
      words = words, body = has_body == '1' and body or nil, key = key_of(base, shelf, name),
      timer = namespace .. '\0' .. name,
    }
  end
  return puts
end

local function write_words(scope, put, before)
  if before == put.words then
    return
  end
  for _, word in ipairs(words_of(before)) do
    call('ZREM', scope.base .. ':word:' .. put.shelf .. ':' .. word, put.name)
  end
  for _, word in ipairs(words_of(put.words)) do
    call('ZADD', scope.base .. ':word:' .. put.shelf .. ':' .. word, 0, put.name)
  end
end

local function write_put(scope, put, before)
  local base = scope.base
  write_words(scope, put, before)
  if put.body then
    call('HSET', put.key, 'rev', put.next_rev, 'due_ms', put.due_ms, 'words', put.words,
      'body', put.body)
    call('ZADD', base .. ':docs:' .. put.shelf, 0, put.name)
  else
    call('UNLINK', put.key)
    call('ZREM', base .. ':docs:' .. put.shelf, put.name)
  end
  if put.body and put.due_ms ~= '' then
    call('ZADD', base .. ':doc_due:' .. put.kind, put.due_ms, put.timer)
  else
    call('ZREM', base .. ':doc_due:' .. put.kind, put.timer)
  end
end

local function first_due(scope, kind)
  return as_score(first_score(scope.base .. ':doc_due:' .. kind))
end

local function cells_of(key)
  return call('HMGET', key, 'rev', 'due_ms', 'words', 'body')
end

-- Write the puts whose revision is as it was seen (argument 4: where hints are told). Answers for
-- each nothing if it was written, else what is there.
register('document_put', function(keys, args)
  local scope = open(keys[1], args)
  if scope.refusal then
    return scope.refusal
  end
  local puts, answers, good, firsts = read_puts(scope.base, args, 5), {}, {}, {}
  for place, put in ipairs(puts) do
    local rev, words = seen(put)
    firsts[put.kind] = firsts[put.kind] or first_due(scope, put.kind)
    good[place] = rev == put.rev and {words} or false
    answers[place] = rev ~= put.rev and {rev ~= '0' and cells_of(put.key) or false} or {}
  end
  for place, put in ipairs(puts) do
    if good[place] then
      write_put(scope, put, good[place][1])
    end
  end
  local changed = {}
  finish(scope, changed)
  for kind, before in pairs(firsts) do
    local after = first_due(scope, kind)
    -- A hint that is too early is put right by whoever looks.
    if after ~= '' and (before == '' or tonumber(after) < tonumber(before)) then
      changed[#changed + 1] =
        {'{due}', partition_of(scope) .. ' ' .. kind, scope.version, after}
    end
  end
  write_records(scope.values)
  return {'ok', scope.at_ms, answers, pass_on(args[4], changed)}
end)

-- Some names after one of them, in their order as bytes.
local function names_after(index, after, limit)
  return call('ZRANGEBYLEX', index, after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
end

-- Whether a document that an index of a word names has the word; one that cannot be read may have.
local function has_word(cells, word)
  local is_read, words = pcall(cjson.decode, cells[3] or '')
  if not is_read or type(words) ~= 'table' then
    return true
  end
  for _, each in ipairs(words) do
    if each == word then
      return true
    end
  end
  return false
end

-- Documents of a kind (argument 4) and namespace (5) with a word (6) after a name (7), so many (8).
register('document_list', function(keys, args)
  local base, shelf = visit(keys[1]), shelf_of(args[4], args[5])
  local word, after, limit = args[6], args[7], tonumber(args[8])
  local index = word == '' and ':docs:' .. shelf or ':word:' .. shelf .. ':' .. word
  local found = {}
  while #found < limit do
    local names = names_after(base .. index, after, limit - #found)
    for _, name in ipairs(names) do
      local key = key_of(base, shelf, name)
      local cells = cells_of(key)
      if call('EXISTS', key) == 1 and (word == '' or has_word(cells, word)) then
        found[#found + 1] = {name, cells}
      end
      after = name
    end
    if #names == 0 then
      break
    end
  end
  return found
end, READ_ONLY)

-- Documents of a kind (argument 6) whose time has come (argument 4, at most argument 5 of them), and
-- when that of the next one does.
register('document_due', function(keys, args)
  local scope = open(keys[1], args)
  local key = scope.base .. ':doc_due:' .. args[6]
  local passed = call('ZRANGEBYSCORE', key, '-inf', args[4], 'WITHSCORES', 'LIMIT', 0, args[5])
  local later = call('ZRANGEBYSCORE', key, '(' .. args[4], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local rows = {}
  for position = 1, #passed, 2 do
    local namespace, name = string.match(passed[position], '^(%Z*)%z(.*)$')
    local document = key_of(scope.base, shelf_of(args[6], namespace or ''), name or '')
    if call('EXISTS', document) == 1 then
      rows[#rows + 1] = {namespace, name, as_score(passed[position + 1]), cells_of(document)}
    end
  end
  local first = as_score(first_score(key))
  return {whole(tonumber(scope.version) - 1), first, as_score(later[2] or ''), rows}
end, READ_ONLY)

-- When the first documents of these kinds (arguments 4 and on) are due.
register('document_peek', function(keys, args)
  local scope = open(keys[1], args)
  local firsts = {}
  for position = 4, #args do
    firsts[#firsts + 1] = first_due(scope, args[position])
  end
  return {whole(tonumber(scope.version) - 1), firsts}
end, READ_ONLY)
