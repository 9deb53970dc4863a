-- Errors. All errors of `ngx` are raised here, as strings with the place in the script that called
-- `ngx`.

local native = ...
local error, pcall, type, tostring, tonumber = error, pcall, type, tostring, tonumber
local pairs, ipairs = pairs, ipairs
local getinfo = debug.getinfo

local ours = {}
for _, name in ipairs(native.prelude) do ours[name] = true end

-- The stack level, for `error` in the calling function, of the script's function that called the
-- prelude.
local function outside()
    local level = 3
    local info = getinfo(level, "S")
    while info and ours[info.source] do
        level = level + 1
        info = getinfo(level, "S")
    end
    return level - 1
end

local function raise(text)
    error(text, outside())
end

-- Raises an error about an argument. It shows the script's name for the function. A method's object
-- is not counted.
local function refuse(i, text)
    local level = outside()
    local called = getinfo(level - 1, "n")
    local name = called and called.name or "?"
    if called and called.namewhat == "method" then i = i - 1 end
    text = i == 0 and ("calling '%s' on bad self (%s)"):format(name, text)
        or ("bad argument #%d to '%s' (%s)"):format(i, name, text)
    error(text, level)
end

local function mismatch(i, wanted, value)
    return refuse(i, wanted .. " expected, got " .. type(value))
end

-- The functions below check argument number i, with the conversions of Lua's own library.

local function a_string(i, value)
    if type(value) == "string" then return value end
    if type(value) == "number" then return (tostring(value)) end
    return mismatch(i, "string", value)
end

local function a_number(i, value)
    local number = type(value) == "number" and value or type(value) == "string" and tonumber(value)
    return number or mismatch(i, "number", value)
end

local function a_kind(i, kind, value)
    if type(value) ~= kind then mismatch(i, kind, value) end
    return value
end

-- A count. Below 0, or NaN, it is nil.
local function a_count(i, value)
    local number = a_number(i, value)
    if number < 0 or number ~= number then return nil end
    return number < 2 ^ 31 and number - number % 1 or 0
end

-- The data that a socket sends: plain values, and arrays of these.
local function a_message(i, value)
    local kind = type(value)
    if kind == "function" or kind == "thread" or kind == "userdata" or kind == "cdata" then
        refuse(i, "string, number, boolean, nil, or array table expected, got " .. kind)
    end
    return value
end

-- Checks the number of arguments. The error text shows it.
local function counted(n, least, most, text)
    if n < least or n > most then raise(text:format(n)) end
end

-- A Rust function raises a userdata. For a wrong type, its text has Rust's word for the expected
-- one.
local words = {
    String = "string", BString = "string", str = "string", i64 = "number", f64 = "number", u16 = "number",
    u32 = "number", usize = "number", table = "table", Table = "table", bool = "boolean",
    ["function"] = "function", thread = "thread", userdata = "socket",
}

local function reworded(raised)
    if type(raised) ~= "userdata" then return error(raised, 0) end
    local text = tostring(raised):match("^[^\n]*")
    local i, got, wanted = text:match("^bad argument #(%d+): error converting Lua (%S+) to (%S+)")
    if not i then return raise(text) end
    return refuse(tonumber(i), (words[wanted] or wanted) .. " expected, got " .. got)
end

-- Finalizers that run when the VM ends may call `ngx`. Rust functions cannot take Lua values then,
-- but those called by FFI
-- work.
local call = pcall
function native.refuse_all()
    call = function() return false, "the Lua VM has ended" end
end

local function returned(ok, ...)
    if ok then return ... end
    return reworded((...))
end

-- These raise no error: they have no arguments, or their callers in the prelude have checked them.
-- So they are called without
-- `pcall`, which saves a fifth of the time of the shortest ones.
local never_raises = {}
for _, name in ipairs {
    "body_data", "body_is_read", "connection_ctx", "eof", "has_request", "long_text", "print_text",
    "read_body", "refuse_all", "send_headers",
} do never_raises[name] = true end

for name, f in pairs(native) do
    if type(f) == "function" and not never_raises[name] then
        native[name] = function(...) return returned(call(f, ...)) end
    end
end

-- The usual result: a value, or nil and the error.
function native.answered(value, why)
    if why then return nil, why end
    return value
end

-- True, or nil and the error.
function native.done(_, why)
    if why then return nil, why end
    return true
end

native.raise, native.refuse, native.counted = raise, refuse, counted
native.a_string, native.a_number, native.a_kind, native.a_count = a_string, a_number, a_kind, a_count
native.a_message = a_message
