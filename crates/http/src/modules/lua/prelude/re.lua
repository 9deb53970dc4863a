-- `ngx.re`. Replacement functions are called from here, so that they may yield.

local native = ...
local type, tostring, concat, insert = type, tostring, table.concat, table.insert
local pairs, select, setmetatable, sub, find = pairs, select, setmetatable, string.sub, string.find
local new_table = require "table.new"
local re_search, re_replace = native.re_search, native.re_replace
local answer, numbers, answered_text = native.answer, native.numbers, native.answered_text
local NIL, FALSE, FORGOTTEN, REFUSED = native.NIL, native.FALSE, native.FORGOTTEN, native.REFUSED
local raise, a_kind, a_number = native.raise, native.a_kind, native.a_number

local re = {}
ngx.re = re

-- Options that were checked before. Their number is bounded by the alphabet.
local right = {}

local function options_of(i, options)
    if not options or right[options] then return options or nil end
    local odd = a_kind(i, "string", options):match("[^imsxuUajodDJ]")
    if odd then raise(('unknown flag "%s" (flags "%s")'):format(odd, options)) end
    if #options < 8 then right[options] = true end
    return options
end

-- The position where a search starts.
local function start_of(ctx)
    local pos = ctx and ctx.pos
    if not pos then return 1 end
    pos = a_number(4, pos)
    return pos > 1 and pos < 2 ^ 53 and pos - pos % 1 or 1
end

-- Compiled patterns by options and text, and the most that are kept.
local MOST = 1024
local compiled, count = {}, 0

local function compile(pattern, options)
    local err, number, groups, names = native.re_compile(pattern, options)
    if err then return nil, err end
    if count >= MOST then compiled, count = {}, 0 end
    local known = { number = number, groups = groups, names = names, lists = options and find(options, "D", 1, true) }
    local of_options = compiled[options or ""]
    if not of_options then
        of_options = {}
        compiled[options or ""] = of_options
    end
    if not of_options[pattern] then count = count + 1 end
    of_options[pattern] = known
    return known
end

-- A compiled pattern, from the cache or new; or nil and the error.
local function pattern_of(pattern, options)
    local of_options = compiled[options or ""]
    local known = of_options and of_options[pattern]
    if known then return known end
    return compile(pattern, options)
end

-- The pattern if it matches at or after `pos`, and false if it does not; or nil and an error. The
-- positions of its groups are in
-- `numbers`.
local function search(subject, pattern, options, pos)
    if pos > #subject + 1 then pos = #subject + 2 end
    local known, err = pattern_of(pattern, options)
    if not known then return nil, err end
    local kind = re_search(subject, #subject, nil, 0, known.number, pos - 1, 0, 0, 0)
    if kind == FORGOTTEN then
        known, err = compile(pattern, options)
        if not known then return nil, err end
        kind = re_search(subject, #subject, nil, 0, known.number, pos - 1, 0, 0, 0)
    end
    if kind == NIL then return false end
    if kind == REFUSED then return nil, answered_text() end
    return known
end

-- With option `D`, several groups may have one name, so each name has a list of those that took
-- part in the match.
local function add_to_lists(found, names)
    for n, name in pairs(names) do
        if found[n] then
            local list = found[name]
            if list then insert(list, found[n]) else found[name] = { found[n] } end
        end
    end
end

-- Groups by number and by name; false for one that took no part in the match.
local function groups_of(subject, known)
    local found = new_table(known.groups, 1)
    for n = 0, known.groups - 1 do
        local from = numbers[2 * n]
        found[n] = from >= 0 and sub(subject, from + 1, numbers[2 * n + 1])
    end
    local names = known.names
    if names then
        if known.lists then
            add_to_lists(found, names)
        else
            for n, name in pairs(names) do found[name] = found[n] end
        end
    end
    return found
end

-- The first match at or after `pos`: nil, its groups, its start and end, and the position of the
-- next search. Without a match
-- nothing, or the error.
local function re_match(subject, pattern, options, pos)
    local known, err = search(subject, pattern, options, pos)
    if not known then return err end
    local call, from, to, behind = answer.call, numbers[0] + 1, numbers[1], answer.number + 1
    local found = groups_of(subject, known)
    -- A finalizer may have run and called `ngx`, which overwrites the positions. Then the match is
    -- repeated.
    if answer.call ~= call then return re_match(subject, pattern, options, pos) end
    return nil, found, from, to, behind
end
native.re_match = re_match

function re.match(subject, pattern, options, ctx, into)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(3, options)
    if ctx then a_kind(4, "table", ctx) end
    if into then a_kind(5, "table", into) end
    local err, found, _, to = re_match(subject, pattern, options, start_of(ctx))
    if not found then
        if err then return nil, err end
        return nil
    end
    if ctx then ctx.pos = to + 1 end
    if into then
        for name, value in pairs(found) do into[name] = value end
        return into
    end
    return found
end

function re.find(subject, pattern, options, ctx, nth)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(3, options)
    if ctx then a_kind(4, "table", ctx) end
    if nth then
        nth = a_kind(5, "number", nth)
        nth = nth > 0 and (nth < 2 ^ 31 and nth - nth % 1 or 2 ^ 31) or 0
    end
    local known, err = search(subject, pattern, options, start_of(ctx))
    if not known then
        if err then return nil, nil, err end
        return nil
    end
    local last, group = numbers[1], nth or 0
    local from, to = -1, nil
    if group < known.groups then from, to = numbers[2 * group], numbers[2 * group + 1] end
    if ctx then ctx.pos = last + 1 end
    if group >= known.groups then return nil, nil, "nth out of bound" end
    if from < 0 then return nil, nil end
    return from + 1, to
end

local matches = {
    __call = function(self)
        local pos, subject = self._pos, self._subj
        if not pos or pos > #subject + 1 then return nil end
        local failed, found, _, _, behind = re_match(subject, self._pattern, self._options, pos)
        if failed or not found then
            self._pos = nil
            if failed then return nil, failed end
            return nil
        end
        self._pos = behind
        return found
    end
}

-- The iterator is a callable table.
function re.gmatch(subject, pattern, options)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(3, options)
    local known, err = pattern_of(pattern, options)
    if not known then return nil, err end
    return setmetatable({ _subj = subject, _pattern = pattern, _options = options, _pos = 1 }, matches)
end

-- The log's text about a wrong `$` in a replacement.
local function wrong(text, rest)
    local name = rest:match("^{?([%a_][%w_]*)")
    if name then
        return ('attempt to use named capturing variable "%s" (named captures not supported yet)'):format(name)
    end
    local open = rest:match("^{(%d+)")
    if open then return ('the closing bracket in "%s" variable is missing'):format(open) end
    return ('lua script: invalid capturing variable name found in "%s"'):format(text)
end

local function text_of(...)
    if select("#", ...) == 0 then raise("bad argument #1 to 'tostring' (value expected)") end
    return (tostring((...)))
end

local function replace(subject, pattern, replacement, options, all)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(4, options)
    local make = replacement
    if type(replacement) ~= "function" then
        local text, all = tostring(replacement), all and 1 or 0
        local known, err = pattern_of(pattern, options)
        if not known then return nil, nil, err end
        local kind = re_replace(subject, #subject, text, #text, known.number, all, 0, 0, 0)
        if kind == FORGOTTEN then
            known, err = compile(pattern, options)
            if not known then return nil, nil, err end
            kind = re_replace(subject, #subject, text, #text, known.number, all, 0, 0, 0)
        end
        if kind == FALSE then
            native.raw_log(ngx.ERR, wrong(text, text:sub(answer.number + 1)))
            return nil, nil, "failed to compile the replacement template"
        end
        if kind == REFUSED then return nil, nil, answered_text() end
        local count = answer.number
        return answered_text(), count
    end
    local out, last, pos, count = {}, 1, 1, 0
    while pos <= #subject + 1 do
        local err, found, from, to, behind = re_match(subject, pattern, options, pos)
        if err then return nil, nil, err end
        if not found then break end
        insert(out, subject:sub(last, from - 1))
        insert(out, text_of(make(found)))
        count = count + 1
        last, pos = to + 1, behind
        if not all then break end
    end
    if count == 0 then return subject, 0 end
    insert(out, subject:sub(last))
    return concat(out), count
end

function re.sub(subject, pattern, replacement, options)
    return replace(subject, pattern, replacement, options, false)
end

function re.gsub(subject, pattern, replacement, options)
    return replace(subject, pattern, replacement, options, true)
end
