-- What `ngx` is made of. The functions of `native` do the work; a function here raises their errors in its
-- caller, and yields where they have to wait: both can only be done in Lua.

local native = ...

local error, type, pairs, ipairs, tostring = error, type, pairs, ipairs, tostring
local setmetatable, rawset, rawget, select = setmetatable, rawset, rawget, select
local concat, insert = table.concat, table.insert
local yield, resume, create = coroutine.yield, coroutine.resume, coroutine.create

-- What a coroutine of a script yields to whoever runs the script, not to the script's own resume.
local WAIT = native.WAIT

-- Values that requests keep, by number.
local kept = native.kept

local function check(refusal, ...)
    if refusal then error(refusal, 2) end
    return ...
end

local function wait(refusal)
    if refusal then error(refusal, 2) end
    return yield(WAIT)
end

native.check, native.wait = check, wait

-- A script's own coroutines may wait, too: their waits pass through its resume.
local function passed(co, ok, ...)
    if ok and (...) == WAIT then return passed(co, resume(co, yield(WAIT))) end
    return ok, ...
end

local function unwrapped(ok, ...)
    if not ok then error((...), 0) end
    return ...
end

function coroutine.resume(co, ...)
    return passed(co, resume(co, ...))
end

function coroutine.wrap(f)
    local co = create(f)
    return function(...) return unwrapped(passed(co, resume(co, ...))) end
end

ngx = {
    OK = 0, ERROR = -1, AGAIN = -2, DONE = -4, DECLINED = -5,
    STDERR = 0, EMERG = 1, ALERT = 2, CRIT = 3, ERR = 4, WARN = 5, NOTICE = 6, INFO = 7, DEBUG = 8,
    null = native.null,
    HTTP_GET = 2, HTTP_HEAD = 4, HTTP_POST = 8, HTTP_PUT = 16, HTTP_DELETE = 32, HTTP_MKCOL = 64,
    HTTP_COPY = 128, HTTP_MOVE = 256, HTTP_OPTIONS = 512, HTTP_PROPFIND = 1024,
    HTTP_PROPPATCH = 2048, HTTP_LOCK = 4096, HTTP_UNLOCK = 8192, HTTP_PATCH = 16384,
    HTTP_TRACE = 32768,
    HTTP_CONTINUE = 100, HTTP_SWITCHING_PROTOCOLS = 101, HTTP_OK = 200, HTTP_CREATED = 201,
    HTTP_ACCEPTED = 202, HTTP_NO_CONTENT = 204, HTTP_PARTIAL_CONTENT = 206,
    HTTP_SPECIAL_RESPONSE = 300, HTTP_MOVED_PERMANENTLY = 301, HTTP_MOVED_TEMPORARILY = 302,
    HTTP_SEE_OTHER = 303, HTTP_NOT_MODIFIED = 304, HTTP_TEMPORARY_REDIRECT = 307,
    HTTP_PERMANENT_REDIRECT = 308, HTTP_BAD_REQUEST = 400, HTTP_UNAUTHORIZED = 401,
    HTTP_PAYMENT_REQUIRED = 402, HTTP_FORBIDDEN = 403, HTTP_NOT_FOUND = 404,
    HTTP_NOT_ALLOWED = 405, HTTP_NOT_ACCEPTABLE = 406, HTTP_REQUEST_TIMEOUT = 408,
    HTTP_CONFLICT = 409, HTTP_GONE = 410, HTTP_UPGRADE_REQUIRED = 426,
    HTTP_TOO_MANY_REQUESTS = 429, HTTP_CLOSE = 444, HTTP_ILLEGAL = 451,
    HTTP_INTERNAL_SERVER_ERROR = 500, HTTP_METHOD_NOT_IMPLEMENTED = 501, HTTP_BAD_GATEWAY = 502,
    HTTP_SERVICE_UNAVAILABLE = 503, HTTP_GATEWAY_TIMEOUT = 504, HTTP_VERSION_NOT_SUPPORTED = 505,
    HTTP_INSUFFICIENT_STORAGE = 507,

    log = native.log,
    get_phase = native.get_phase,
    now = native.now, time = native.time, update_time = native.update_time,
    today = native.today, localtime = native.localtime, utctime = native.utctime,
    http_time = native.http_time, cookie_time = native.cookie_time,
    parse_http_time = native.parse_http_time,
    encode_base64 = function(s, plain) return native.encode_base64(tostring(s), plain) end,
    decode_base64 = native.decode_base64,
    md5 = native.md5, md5_bin = native.md5_bin, sha1_bin = native.sha1_bin,
    hmac_sha1 = native.hmac_sha1, crc32_short = native.crc32, crc32_long = native.crc32,
    quote_sql_str = native.quote_sql,
    escape_uri = function(s, kind) return native.escape_uri(tostring(s), kind) end,
    unescape_uri = function(s) return native.unescape_uri(tostring(s)) end,
}

print = native.print_log


-- What consists of plain values is put together here; tables and ngx.null are left to `native`.

-- A plain value as a text, or a number that may stand for one; of others nothing.
local function written(part)
    local kind = type(part)
    if kind == "string" or kind == "number" then return part end
    if kind == "nil" or kind == "boolean" then return tostring(part) end
end

-- For a few values no table is made, which would take longer than all the rest.
local function text_of(...)
    local n, a, b, c, d, e = select("#", ...), ...
    if n == 1 then
        if type(a) == "string" then return a end
        a = written(a)
        return a and a .. ""
    elseif n == 2 then
        a, b = written(a), written(b)
        return a and b and a .. b
    elseif n == 3 then
        a, b, c = written(a), written(b), written(c)
        return a and b and c and a .. b .. c
    elseif n == 4 then
        a, b, c, d = written(a), written(b), written(c), written(d)
        return a and b and c and d and a .. b .. c .. d
    elseif n == 5 then
        a, b, c, d, e = written(a), written(b), written(c), written(d), written(e)
        return a and b and c and d and e and a .. b .. c .. d .. e
    end
    local parts = { ... }
    for i = 1, n do
        local part = written(parts[i])
        if not part then return nil end
        parts[i] = part
    end
    return concat(parts)
end

local function printed(refusal, ok, why)
    if refusal then error(refusal, 2) end
    if ok then return ok end
    return nil, why
end

function ngx.say(...)
    local text = text_of(...)
    if text then return printed(native.print_text(text, true)) end
    return check(native.say(...))
end

function ngx.print(...)
    local text = text_of(...)
    if text then return printed(native.print_text(text)) end
    return check(native.print(...))
end

function ngx.send_headers() return check(native.send_headers()) end
function ngx.flush() return wait(native.flush()) end
function ngx.eof() return wait(native.eof()) end
function ngx.exit(status) return wait(native.exit(status)) end
function ngx.redirect(uri, status) return wait(native.redirect(uri, status)) end
function ngx.on_abort(f) return check(native.on_abort(f)) end
function ngx.sleep(seconds) return wait(native.sleep(seconds)) end

function ngx.exec(uri, args)
    if type(args) == "table" then args = ngx.encode_args(args) end
    return wait(native.exec(uri, args or ""))
end

-- Query strings.

local function add_arg(list, name, value)
    if value == true then
        insert(list, name)
    elseif type(value) == "string" or type(value) == "number" then
        insert(list, name .. "=" .. native.escape_uri(tostring(value)))
    elseif value ~= false then
        error("attempt to use " .. type(value) .. " as query arg value", 3)
    end
end

function ngx.encode_args(args)
    local list = {}
    for name, value in pairs(args) do
        name = native.escape_uri(tostring(name))
        if type(value) == "table" then
            for _, one in ipairs(value) do add_arg(list, name, one) end
        else
            add_arg(list, name, value)
        end
    end
    return concat(list, "&")
end

-- A list of names and values in turn, as a table in which repeated names have tables of values.
local function gathered(list)
    local all = {}
    for i = 1, #list, 2 do
        local name, value = list[i], list[i + 1]
        local known = all[name]
        if known == nil then
            all[name] = value
        elseif type(known) == "table" then
            insert(known, value)
        else
            all[name] = { known, value }
        end
    end
    return all
end
native.gathered = gathered

-- A table by names, or a list that has to become one, and a word on what was left out.
local function named(all, list, truncated)
    if not all then all = gathered(list) end
    if truncated then return all, truncated end
    return all
end
native.named = named

function ngx.decode_args(text, most)
    return named(native.decode_args(text, most))
end

-- Header lines: names in lower case, and a metatable that finds them in any spelling.

-- Scripts ask for the same few names again and again, but nothing keeps them from asking for others.
local spellings, known_spellings = {}, 0

local function spelling(name)
    local usual = spellings[name]
    if usual then return usual end
    if known_spellings >= 1000 then spellings, known_spellings = {}, 0 end
    usual = name:lower():gsub("_", "-")
    spellings[name], known_spellings = usual, known_spellings + 1
    return usual
end

local spelled = {
    __index = function(t, name)
        if type(name) ~= "string" then return nil end
        return rawget(t, spelling(name))
    end
}

function native.headers(raw, ...)
    local all, truncated = named(...)
    if not raw then setmetatable(all, spelled) end
    if truncated then return all, truncated end
    return all
end

ngx.resp = {
    get_headers = function(most, raw) return native.headers(raw, check(native.answer_headers(most, raw and true))) end,
}

ngx.header = setmetatable({}, {
    __index = function(_, name) return check(native.get_header(name)) end,
    __newindex = function(_, name, value)
        if type(value) == "string" and type(name) == "string" then
            return check(native.set_header_text(name, value))
        end
        return check(native.set_header(name, value))
    end,
})

function ngx.resp.add_header(name, value)
    local old = check(native.get_header(name))
    if old == nil then return check(native.set_header(name, value)) end
    local all = type(old) == "table" and old or { old }
    if type(value) == "table" then
        for _, one in ipairs(value) do insert(all, one) end
    else
        insert(all, value)
    end
    return check(native.set_header(name, all))
end

-- Variables that the configuration knows have numbers; there are only so many of them.
local numbers = setmetatable({}, { __index = function(t, name)
    local number = native.var_number(name)
    if number then rawset(t, name, number) end
    return number
end })

local function get_var(_, name)
    local kind = type(name)
    if kind == "string" then
        local number = numbers[name]
        if number then return check(native.get_var_at(number)) end
        return check(native.get_var(name))
    end
    if kind == "number" then return check(native.get_group(name)) end
    error("bad variable name", 2)
end

ngx.var = setmetatable({}, {
    __index = get_var,
    __newindex = function(_, name, value) return check(native.set_var(name, value)) end,
})

ngx.arg = setmetatable({}, {
    __index = function(_, index) return check(native.get_arg(index)) end,
    __newindex = function(_, index, value) return check(native.set_arg(index, value)) end,
})

-- Timers.

ngx.timer = {
    at = function(delay, f, ...) return check(native.set_timer(delay, false, f, ...)) end,
    every = function(delay, f, ...)
        if delay <= 0 then error("delay cannot be less than or equal to zero", 2) end
        return check(native.set_timer(delay, true, f, ...))
    end,
    pending_count = native.timers_pending,
    running_count = native.timers_running,
}

-- Light threads.

ngx.thread = {
    spawn = function(f, ...)
        if type(f) ~= "function" then
            error("bad argument #1 to 'spawn' (function expected, got " .. type(f) .. ")", 2)
        end
        local thread = create(f)
        wait(native.spawn(thread, ...))
        return thread
    end,
    wait = function(...) return wait(native.join(...)) end,
    kill = function(thread) return wait(native.kill(thread)) end,
}

-- The server.

ngx.worker = {
    pid = function() return native.worker_pid end,
    id = function() return native.worker_id end,
    count = function() return native.worker_count end,
    exiting = native.worker_exiting,
}

ngx.config = {
    debug = false,
    subsystem = "http",
    nginx_version = 1031005,
    ngx_lua_version = 10029,
    prefix = function() return native.prefix end,
    nginx_configure = function() return "" end,
}

-- Fields of `ngx` that are more than stored values. Where there is no request, `ngx.ctx` belongs to the
-- running coroutine.

local without_request = setmetatable({}, { __mode = "k" })

local function loose_ctx()
    local co = coroutine.running() or WAIT
    local ctx = without_request[co]
    if not ctx then
        ctx = {}
        without_request[co] = ctx
    end
    return ctx
end

local getters = {
    status = function() return check(native.get_status()) end,
    headers_sent = function() return check(native.headers_sent()) end,
    is_subrequest = function() return check(native.is_subrequest()) end,
    ctx = function()
        local number = native.ctx_number()
        if number then return kept[number] end
        if number == false then return loose_ctx() end
        local ctx = {}
        check(native.set_ctx(ctx))
        return ctx
    end,
}

local setters = {
    status = function(value) return check(native.set_status(value)) end,
    ctx = function(value)
        if native.has_request() then return check(native.set_ctx(value)) end
        without_request[coroutine.running() or WAIT] = value
    end,
}

setmetatable(ngx, {
    __index = function(_, name)
        local get = getters[name]
        return get and get()
    end,
    __newindex = function(t, name, value)
        local set = setters[name]
        if set then return set(value) end
        rawset(t, name, value)
    end,
})

package.loaded.ngx = ngx

-- What `lua-resty-core` adds is built in.
package.preload["resty.core"] = function() return { version = "0.1.31" } end

-- Globals are shared by all requests of a loop.
setmetatable(_G, {
    __newindex = function(t, name, value)
        rawset(t, name, value)
        native.global_written(tostring(name))
    end,
})
