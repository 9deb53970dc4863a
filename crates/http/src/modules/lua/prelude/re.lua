-- `ngx.re`. Replacing is done here, so that a function that makes replacements may wait.

local native = ...
local type, tostring, concat, insert = type, tostring, table.concat, table.insert
local pairs, select, setmetatable = pairs, select, setmetatable
local re_match, re_span, re_replace = native.re_match, native.re_span, native.re_replace
local raise, a_kind, a_number = native.raise, native.a_kind, native.a_number

local re = {}
ngx.re = re

-- Options that were seen to be right; there are only so many of them.
local right = {}

local function options_of(i, options)
    if not options or right[options] then return options or nil end
    local odd = a_kind(i, "string", options):match("[^imsxuUajodDJ]")
    if odd then raise(('unknown flag "%s" (flags "%s")'):format(odd, options)) end
    if #options < 8 then right[options] = true end
    return options
end

-- Where a search begins.
local function start_of(ctx)
    local pos = ctx and ctx.pos
    if not pos then return 1 end
    pos = a_number(4, pos)
    return pos > 1 and pos < 2 ^ 53 and pos - pos % 1 or 1
end

function re.match(subject, pattern, options, ctx, into)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(3, options)
    if ctx then a_kind(4, "table", ctx) end
    if into then a_kind(5, "table", into) end
    local err, found, _, to = re_match(subject, pattern, options, start_of(ctx))
    if err then return nil, err end
    if not found then return nil end
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
    local err, from, to, whole, groups = re_span(subject, pattern, options, start_of(ctx), nth or 0)
    if err then return nil, nil, err end
    if not whole then return nil end
    if ctx then ctx.pos = whole + 1 end
    if nth and nth >= groups then return nil, nil, "nth out of bound" end
    return from, to
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

-- The iterator is a table that can be called.
function re.gmatch(subject, pattern, options)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(3, options)
    local err = re_match("", pattern, options, 1)
    if err then return nil, err end
    return setmetatable({ _subj = subject, _pattern = pattern, _options = options, _pos = 1 }, matches)
end

-- What the log says of a replacement that is wrong behind this `$`.
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
    return tostring((...))
end

local function replace(subject, pattern, replacement, options, all)
    subject, pattern, options = tostring(subject), a_kind(2, "string", pattern), options_of(4, options)
    local make = replacement
    if type(replacement) ~= "function" then
        local text = tostring(replacement)
        local err, done, count, at = re_replace(subject, pattern, options, text, all)
        if err then return nil, nil, err end
        if done then return done, count end
        native.raw_log(ngx.ERR, wrong(text, text:sub(at + 1)))
        return nil, nil, "failed to compile the replacement template"
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
