-- `ngx.header`, `ngx.resp`, `ngx.var` and `ngx.arg`: tables whose fields are computed on access.

local native = ...
local type, tostring, ipairs, setmetatable, rawget, insert = type, tostring, ipairs, setmetatable, rawget, table.insert
local check, raise, named, given, done_directly =
    native.check, native.raise, native.named, native.given, native.done_directly
local a_string, a_number, a_count, TRUE = native.a_string, native.a_number, native.a_count, native.TRUE

-- Headers by name in lower case, with a metatable that finds other spellings.

-- A cache of spellings. Scripts usually access few names, but may access any, so it is bounded.
local spellings, known_spellings = {}, 0

local function spelling(name)
    local usual = spellings[name]
    if usual then return usual end
    if known_spellings >= 1000 then spellings, known_spellings = {}, 0 end
    usual = name:lower():gsub("_", "-")
    spellings[name], known_spellings = usual, known_spellings + 1
    return usual
end

native.spelled = {
    __index = function(t, name)
        if type(name) ~= "string" then return (rawget(t, a_string(1, name))) end
        return (rawget(t, spelling(name)))
    end
}

function native.headers(meta, ...)
    local all, truncated = named(...)
    if meta then setmetatable(all, meta) end
    if truncated then return all, truncated end
    return all
end

ngx.resp = {
    get_headers = function(most, raw)
        if most ~= nil then most = a_count(1, most) end
        return native.headers(not raw and native.spelled, check(native.answer_headers(most, raw and true)))
    end,
}

-- Header values as texts.
local function lines(value)
    if type(value) ~= "table" then return (tostring(value)) end
    local all = {}
    for i, one in ipairs(value) do all[i] = tostring(one) end
    return all
end
native.lines = lines

local get_header, set_header_text = native.get_header, native.set_header_text

-- A text, a table of several, or nil.
local function header(name)
    local kind = get_header(name, #name, nil, 0, 0, 0, 0, 0, 0)
    if kind == TRUE then return check(native.get_header_lines(name)) end
    return given(kind)
end

ngx.header = setmetatable({}, {
    __index = function(_, name) return header(tostring(name)) end,
    __newindex = function(_, name, value)
        if type(value) == "string" and type(name) == "string" then
            return done_directly(set_header_text(name, #name, value, #value, 0, 0, 0, 0, 0))
        end
        if value ~= nil then value = lines(value) end
        return check(native.set_header(tostring(name), value))
    end,
})

function ngx.resp.add_header(name, value)
    if value == nil then raise("invalid header value") end
    name, value = tostring(name), lines(value)
    local old = header(name)
    if old == nil then return check(native.set_header(name, value)) end
    local all = type(old) == "table" and old or { old }
    if type(value) == "table" then
        for _, one in ipairs(value) do insert(all, one) end
    else
        insert(all, value)
    end
    return check(native.set_header(name, all))
end

-- A bounded cache of variable numbers: those of the configuration have one, others have false.
local numbers, known_numbers = {}, 0

local function number_of(name)
    local number = numbers[name]
    if number ~= nil then return number end
    if known_numbers >= 1000 then numbers, known_numbers = {}, 0 end
    number = native.var_number(name) or false
    numbers[name], known_numbers = number, known_numbers + 1
    return number
end

local get_var_at, set_var = native.get_var_at, native.set_var

local function get_var(_, name)
    local kind = type(name)
    if kind == "string" then
        local number = number_of(name)
        if number then return given(get_var_at(nil, 0, nil, 0, number, 0, 0, 0, 0)) end
        return given(native.get_var(name, #name, nil, 0, 0, 0, 0, 0, 0))
    end
    if kind == "number" then return check(native.get_group(name)) end
    raise("bad variable name")
end

ngx.var = setmetatable({}, {
    __index = get_var,
    __newindex = function(_, name, value)
        if type(name) ~= "string" then raise("bad variable name") end
        if value == nil then return done_directly(set_var(name, #name, nil, 0, 0, -1, 0, 0, 0)) end
        if type(value) ~= "string" then value = tostring(value) end
        return done_directly(set_var(name, #name, value, #value, 1, number_of(name) or -1, 0, 0, 0))
    end,
})

ngx.arg = setmetatable({}, {
    __index = function(_, index) return check(native.get_arg(type(index) == "number" and index or 0)) end,
    __newindex = function(_, index, value) return check(native.set_arg(a_number(2, index), value)) end,
})
