-- `ngx.req`.

local native = ...
local check, wait, lines = native.check, native.wait, native.lines
local raise, refuse, counted = native.raise, native.refuse, native.counted
local a_string, a_number, a_kind, a_count = native.a_string, native.a_number, native.a_kind, native.a_count
local type, tostring, select, rawget = type, tostring, select, rawget
local concat, insert = table.concat, table.insert

local METHODS = {
    [2] = "GET", [4] = "HEAD", [8] = "POST", [16] = "PUT", [32] = "DELETE", [64] = "MKCOL",
    [128] = "COPY", [256] = "MOVE", [512] = "OPTIONS", [1024] = "PROPFIND", [2048] = "PROPPATCH",
    [4096] = "LOCK", [8192] = "UNLOCK", [16384] = "PATCH", [32768] = "TRACE",
}
native.METHODS = METHODS

local req = {}
ngx.req = req

-- True counts as 1 and false as nil, as in conversions of C.
local function most_of(i, most)
    if most == nil or most == false then return nil end
    if most == true then return 1 end
    return a_count(i, a_kind(i, "number", most))
end

local function none(...)
    return counted(select("#", ...), 0, 0, "expecting 0 arguments but seen %d")
end

req.get_method, req.http_version = native.plain(native.method), native.plain(native.http_version)
function req.raw_header(no_line) return check(native.raw_header(no_line and true)) end
req.start_time, req.is_internal = native.plain(native.start_time), native.plain(native.is_internal)
function req.read_body(...) none(...) wait(native.read_body()) end
function req.discard_body(...) none(...) return check(native.discard_body()) end
function req.get_body_file(...) none(...) return check(native.body_file()) end

function req.set_body_data(...)
    counted(select("#", ...), 1, 1, "expecting 1 arguments but seen %d")
    return check(native.set_body_data(a_string(1, (...))))
end

function req.get_body_data(...)
    local n, most = select("#", ...), ...
    counted(n, 0, 1, "expecting 0 or 1 arguments but seen %d")
    most = n == 1 and a_count(1, most) or 0
    local data = check(native.body_data())
    if data and most > 0 then return (data:sub(1, most)) end
    return data
end

function req.set_method(method)
    if type(method) ~= "number" then raise("bad method number") end
    local name = METHODS[method]
    if not name then raise("unsupported HTTP method: " .. method) end
    return check(native.set_method(name))
end

-- A request may have header names with an underscore (`underscores_in_headers`). These take
-- precedence.
local usual = native.spelled.__index
local spelled = {
    __index = function(t, name)
        local exact = type(name) == "string" and name:find("_", 1, true) and rawget(t, name:lower())
        return exact or usual(t, name)
    end
}

function req.get_headers(most, raw)
    return native.headers(not raw and spelled, check(native.request_headers(most_of(1, most), raw and true)))
end

local function header_name(name)
    if name == nil then raise("bad 'name' argument: string expected, got nil") end
    return (tostring(name))
end

local set_header_text, done_directly = native.set_request_header_text, native.done_directly

function req.set_header(name, value)
    name = header_name(name)
    if type(value) == "string" then
        return done_directly(set_header_text(name, #name, value, #value, 0, 0, 0, 0, 0))
    end
    if value ~= nil then value = lines(value) end
    return check(native.set_request_header(name, value))
end

function req.clear_header(name) return check(native.set_request_header(tostring(name), nil)) end

function req.add_header(name, value)
    name = header_name(name)
    if value == nil then raise("bad 'value' argument: string or table expected, got nil") end
    if type(value) == "table" and #value == 0 then raise("bad 'value' argument: non-empty table expected") end
    return check(native.add_request_header(name, lines(value)))
end

-- The second argument is a table to reuse.
function req.get_uri_args(most, into)
    local all, truncated = native.named(check(native.uri_args(most_of(1, most))))
    if into then
        for name in pairs(a_kind(2, "table", into)) do into[name] = nil end
        for name, value in pairs(all) do into[name] = value end
        all = into
    end
    if truncated then return all, truncated end
    return all
end

function req.set_uri_args(...)
    counted(select("#", ...), 1, 1, "expecting 1 argument but seen %d")
    local args = ...
    local kind = type(args)
    if kind == "table" then
        args = ngx.encode_args(args)
    elseif kind ~= "string" and kind ~= "number" then
        refuse(1, "string, number, or table expected, but got " .. kind)
    end
    return check(native.set_args(args))
end

function req.set_uri(...)
    local n, uri, jump = select("#", ...), ...
    counted(n, 1, 3, "expecting 1, 2 or 3 arguments but seen %d")
    uri = a_string(1, uri)
    if n == 3 then a_kind(3, "boolean", (select(3, ...))) end
    if n >= 2 then a_kind(2, "boolean", jump) end
    if jump then check(native.may_jump()) end
    check(native.set_uri(uri, select(3, ...) == true))
    if jump then return wait(native.jump()) end
end

function req.get_post_args(...)
    local n, most = select("#", ...), ...
    counted(n, 0, 1, "expecting 0 or 1 arguments but seen %d")
    most = n == 1 and a_count(1, most) or nil
    if not check(native.body_is_read()) then
        raise("no request body found; maybe you should turn on lua_need_request_body?")
    end
    local data = check(native.body_data())
    if data then return native.named(native.decode_args(data, most)) end
    if check(native.body_file()) then return nil, "request body in temp file not supported" end
    return {}
end

-- Raises an error unless the body was read, or a script reads it by `ngx.req.socket`.
local function after_reading()
    if not check(native.body_is_begun()) then raise("request body not read yet") end
end

function req.set_body_file(...)
    local n, path, clean = select("#", ...), ...
    counted(n, 1, 2, "expecting 1 or 2 arguments but seen %d")
    path = a_string(1, path)
    after_reading()
    if n == 2 then a_kind(2, "boolean", clean) end
    local ok, why = wait(native.put_body_file(path, clean == true))
    if not ok then raise(why) end
end

-- A body under construction, in pieces, with its buffer size. A larger body is written to a file.
local pieces = setmetatable({}, { __mode = "k" })

local function begun()
    check(native.body_is_begun())
    local all = pieces[ngx.ctx]
    if not all then raise("request_body not initialized") end
    return all
end

function req.init_body(...)
    local n, size = select("#", ...), ...
    counted(n, 0, 1, "expecting 0 or 1 argument but seen %d")
    if n == 1 and a_number(1, size) < 0 then raise(("bad size argument: %d"):format(size)) end
    after_reading()
    pieces[ngx.ctx] = { room = n == 1 and a_number(1, size) or nil }
end

function req.append_body(...)
    counted(select("#", ...), 1, 1, "expecting 1 arguments but seen %d")
    local data = a_string(1, (...))
    insert(begun(), data)
end

function req.finish_body(...)
    counted(select("#", ...), 0, 0, "expecting 0 argument but seen %d")
    local all = begun()
    pieces[ngx.ctx] = nil
    wait(native.put_body(concat(all), all.room))
end
