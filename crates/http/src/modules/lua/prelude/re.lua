-- `ngx.re`. Replacing is done here, so that a function that makes replacements may wait.

local native = ...
local type, tostring, concat, insert, error = type, tostring, table.concat, table.insert, error
local re_match, re_span = native.re_match, native.re_span

local re = {}
ngx.re = re

local function from_of(ctx)
    local pos = ctx and ctx.pos or 1
    return pos < 1 and 1 or pos
end

function re.match(subject, pattern, options, ctx, into)
    local start = from_of(ctx)
    local err, found, _, to = re_match(tostring(subject), pattern, options, start)
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
    local start = from_of(ctx)
    local err, from, to, whole = re_span(tostring(subject), pattern, options, start, nth)
    if err then return nil, nil, err end
    if not whole then return nil end
    if ctx then ctx.pos = whole + 1 end
    return from, to
end

-- Where to search next: behind the match, and behind one more byte if the match was empty.
local function after(from, to)
    return to < from and to + 2 or to + 1
end

function re.gmatch(subject, pattern, options)
    subject = tostring(subject)
    local pos = 1
    local err = re_match("", pattern, options, 1)
    if err then return nil, err end
    return function()
        if pos > #subject + 1 then return nil end
        local failed, found, from, to = re_match(subject, pattern, options, pos)
        if failed then
            pos = #subject + 2
            return nil, failed
        end
        if not found then
            pos = #subject + 2
            return nil
        end
        pos = after(from, to)
        return found
    end
end

-- A replacement with `$1`, `${1}` and `$$` as a function of the groups.
local function template(text)
    if not text:find("$", 1, true) then return function() return text end end
    local parts, pos = {}, 1
    while true do
        local at = text:find("$", pos, true)
        insert(parts, text:sub(pos, (at or 0) - 1))
        if not at then break end
        local rest = text:sub(at + 1)
        local number, length = rest:match("^(%d+)"), nil
        if number then
            length = #number
        elseif rest:match("^{%d+}") then
            number = rest:match("^{(%d+)}")
            length = #number + 2
        elseif rest:sub(1, 1) == "$" then
            number, length = "$", 1
        else
            return nil, 'the replacement "' .. text .. '" holds an invalid variable'
        end
        insert(parts, number == "$" and number or tonumber(number))
        if number == "$" then parts[#parts] = "$" end
        pos = at + 1 + length
    end
    return function(groups)
        local out = {}
        for i, part in ipairs(parts) do
            out[i] = type(part) == "number" and (groups[part] or "") or part
        end
        return concat(out)
    end
end

local function replace(subject, pattern, replacement, options, all)
    subject = tostring(subject)
    local make = replacement
    if type(replacement) ~= "function" then
        local err
        make, err = template(tostring(replacement))
        if not make then return nil, nil, err end
    end
    local out, last, pos, count = {}, 1, 1, 0
    while pos <= #subject + 1 do
        local err, found, from, to = re_match(subject, pattern, options, pos)
        if err then return nil, nil, err end
        if not found then break end
        insert(out, subject:sub(last, from - 1))
        insert(out, tostring(make(found)))
        count = count + 1
        last, pos = to + 1, after(from, to)
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
