-- The table `ngx`. The functions of `native` do the work. The functions here check arguments, raise
-- errors in their caller, and
-- yield if they must wait: the last two are possible only in Lua.

local native = ...

local error, type, pairs, ipairs, tostring, tonumber = error, type, pairs, ipairs, tostring, tonumber
local setmetatable, rawset, rawget, select = setmetatable, rawset, rawget, select
local concat, insert = table.concat, table.insert
local yield, resume, create, running = coroutine.yield, coroutine.resume, coroutine.create, coroutine.running
local isyieldable = coroutine.isyieldable
local getinfo, getlocal, traceback = debug.getinfo, debug.getlocal, debug.traceback
local xpcall, unpack = xpcall, unpack
local getmetatable = getmetatable
local raise, refuse, counted = native.raise, native.refuse, native.counted
local answer, given = native.answer, native.given
local NUMBER, FALSE = native.NUMBER, native.FALSE
local a_string, a_number, a_kind, a_count = native.a_string, native.a_number, native.a_kind, native.a_count

-- The first value of a yield to the run, rather than to the script's own resume.
local WAIT = native.WAIT

-- Values kept for requests, by number.
local kept = native.kept

local function check(refusal, ...)
    if refusal then raise(refusal) end
    return ...
end

local function wait(refusal)
    if refusal then raise(refusal) end
    -- Lua's own error would begin with the place of a function in the prelude or of its caller.
    if not isyieldable() then error("attempt to yield across C-call boundary", 0) end
    return yield(WAIT)
end

native.check, native.wait = check, wait

-- Coroutines that Lua reports as suspended, but that wait in a function of `ngx` ("running"), or
-- have resumed one that does
-- ("normal").
local waiting = setmetatable({}, { __mode = "k" })

-- Coroutines that a script resumes may wait, too: their yields to the run pass through its resume.
local passed

local function resumed(co, self, ...)
    waiting[co], waiting[self] = nil, nil
    return passed(co, resume(co, ...))
end

function passed(co, ok, ...)
    if not ok or (...) ~= WAIT then return ok, ... end
    local self = running() or WAIT
    waiting[co], waiting[self] = waiting[co] or "running", "normal"
    return resumed(co, self, yield(WAIT))
end

local function unwrapped(ok, ...)
    if not ok then error((...), 0) end
    return ...
end

-- Light threads that were killed. Lua reports them as suspended.
local killed = setmetatable({}, { __mode = "k" })
local status = coroutine.status

-- Light threads. True until another coroutine has waited for their end.
local light = setmetatable({}, { __mode = "k" })

function coroutine.status(co)
    if type(co) ~= "thread" then refuse(1, "coroutine expected") end
    if killed[co] then return "dead" end
    local known = status(co)
    if known == "suspended" then return waiting[co] or light[co] ~= nil and "running" or known end
    return known == "dead" and light[co] and "zombie" or known
end

function coroutine.resume(co, ...)
    if type(co) ~= "thread" then refuse(1, "coroutine expected") end
    if killed[co] then return false, "cannot resume dead coroutine" end
    return passed(co, resume(co, ...))
end

-- The script itself cannot yield in phases that may not wait. Coroutines that it resumes can.
local unyielding = native.unyielding

function coroutine.yield(...)
    if unyielding[running()] then raise("attempt to yield across C-call boundary") end
    return yield(...)
end

-- A Lua function, not one of a library in C or Rust.
local function a_script(i, f)
    if type(f) ~= "function" or getinfo(f, "S").what == "C" then refuse(i, "Lua function expected") end
    return f
end

function coroutine.create(f) return create(a_script(1, f)) end

function coroutine.wrap(f)
    local co = create(a_script(1, f))
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
    HTTP_INTERNAL_SERVER_ERROR = 500, HTTP_METHOD_NOT_IMPLEMENTED = 501, HTTP_NOT_IMPLEMENTED = 501,
    HTTP_BAD_GATEWAY = 502,
    HTTP_SERVICE_UNAVAILABLE = 503, HTTP_GATEWAY_TIMEOUT = 504, HTTP_VERSION_NOT_SUPPORTED = 505,
    HTTP_INSUFFICIENT_STORAGE = 507,
}

-- These are Lua functions, as in lua-resty-core, since a coroutine may start with one.
for _, name in ipairs { "get_phase", "now", "time", "today", "localtime", "utctime" } do
    ngx[name] = native.plain(native[name])
end
local update_time = native.update_time
function ngx.update_time() update_time(nil, 0, nil, 0, 0, 0, 0, 0, 0) end

-- Functions of texts. They take any value; nil and false are an empty text.

local function shown(value)
    if type(value) == "string" then return value end
    return value and tostring(value) or ""
end

local escape_uri, encode_base64 = native.escape_uri, native.encode_base64

-- The default type of `ngx.escape_uri`.
local COMPONENT = 2

local function escaped(s) return given(escape_uri(s, #s, nil, 0, COMPONENT, 0, 0, 0, 0)) end

function ngx.escape_uri(s, kind)
    s = shown(s)
    if kind == nil then return escaped(s) end
    if type(kind) ~= "number" then raise('"type" is not a number') end
    if kind < 0 or kind > 6 then raise('"type" ' .. kind .. " out of range") end
    return given(escape_uri(s, #s, nil, 0, kind, 0, 0, 0, 0))
end

function ngx.encode_base64(s, plain)
    if plain ~= nil and type(plain) ~= "boolean" then
        raise("bad no_padding: boolean expected, got " .. type(plain))
    end
    s = shown(s)
    return given(encode_base64(s, #s, nil, 0, plain and 1 or 0, 0, 0, 0, 0))
end

for name, f in pairs {
    unescape_uri = native.unescape_uri, md5 = native.md5, md5_bin = native.md5_bin, sha1_bin = native.sha1_bin,
    crc32_short = native.crc32, crc32_long = native.crc32,
} do
    local of = native.of_text(f)
    ngx[name] = function(s) return of(shown(s)) end
end

native.decode_base64 = native.of_text(native.decode_base64)

-- These take one type only.

for name, kind in pairs {
    decode_base64 = "string", parse_http_time = "string", http_time = "number", cookie_time = "number",
} do
    local f = native[name]
    ngx[name] = function(value)
        if type(value) ~= kind then raise(kind .. " argument only") end
        return f(value)
    end
end

function ngx.hmac_sha1(...)
    counted(select("#", ...), 2, 2, "expecting 2 arguments, but got %d")
    local key, text = ...
    return native.hmac_sha1(a_string(1, key), a_string(2, text))
end

function ngx.quote_sql_str(...)
    counted(select("#", ...), 1, 1, "expecting one argument")
    return native.quote_sql(a_string(1, (...)))
end

-- The log.

local write_log, is_logged = native.log, native.of_number(native.is_logged)
native.is_logged = is_logged

local function loggable(i, value)
    local kind = type(value)
    if kind == "table" then
        local meta = getmetatable(value)
        local text = type(meta) == "table" and rawget(meta, "__tostring")
        if not text then refuse(i, "expected table to have __tostring metamethod") end
        return text(value)
    end
    if kind == "function" or kind == "thread" or kind == "cdata" or kind == "userdata" and value ~= ngx.null then
        refuse(i, "string, number, boolean, or nil expected, got " .. kind)
    end
    return value
end

local function log_at(level, ...)
    local n, first = select("#", ...), ...
    if n == 1 and type(first) == "string" then return write_log(level, first) end
    local all = { ... }
    for i = 1, n do
        if type(all[i]) ~= "string" then all[i] = loggable(i, all[i]) end
    end
    return write_log(level, unpack(all, 1, n))
end

function ngx.log(...)
    local n, level = select("#", ...), ...
    if n == 0 then refuse(1, "number expected, got no value") end
    level = a_number(1, level)
    level = level - level % 1
    if not (level >= 0 and level <= 8) then refuse(1, ("bad log level: %d"):format(level)) end
    if not is_logged(level) then return end
    return log_at(level, select(2, ...))
end

function print(...)
    if not is_logged(ngx.NOTICE) then return end
    return log_at(ngx.NOTICE, ...)
end

-- Plain values are joined here; tables and ngx.null are left to `native`.

-- A plain value as a text or number; nil for others.
local function written(part)
    local kind = type(part)
    if kind == "string" or kind == "number" then return part end
    if kind == "nil" or kind == "boolean" then return (tostring(part)) end
end

-- A few values are joined without a table, which would take longer than the rest.
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
    return (concat(parts))
end

local function printed(refusal, ok, why)
    if refusal then raise(refusal) end
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

function ngx.flush(...)
    local n, sync = select("#", ...), ...
    counted(n, 0, 1, "attempt to pass %d arguments, but accepted 0 or 1")
    if n == 1 then a_kind(1, "boolean", sync) end
    return wait(native.flush(sync == true))
end

function ngx.eof(...)
    counted(select("#", ...), 0, 0, "no argument is expected")
    return wait(native.eof())
end

function ngx.exit(status)
    local refusal, goes_on = native.exit(a_kind(1, "number", status))
    if goes_on then return end
    return wait(refusal)
end

function ngx.redirect(...)
    local n, uri, status = select("#", ...), ...
    counted(n, 1, 2, "expecting one or two arguments")
    uri = a_string(1, uri)
    if n == 2 then
        status = a_number(2, status)
        status = status > 0 and status < 1000 and status - status % 1 or 0
    end
    return wait(native.redirect(uri, status))
end

function ngx.on_abort(f) return check(native.on_abort(f)) end

function ngx.sleep(...)
    counted(select("#", ...), 1, 1, "attempt to pass %d arguments, but accepted 1")
    local seconds = a_number(1, (...))
    -- Durations are whole milliseconds, without the rest.
    if seconds <= -0.001 then raise(('invalid sleep duration "%d"'):format(seconds * 1000)) end
    return wait(native.sleep(seconds < 0 and 0 or seconds))
end

function ngx.exec(...)
    local n, uri, args = select("#", ...), ...
    counted(n, 1, 2, "expecting one or two arguments, but got %d")
    uri = a_string(1, uri)
    local kind = type(args)
    if kind == "table" then
        args = ngx.encode_args(args)
    elseif kind ~= "string" and kind ~= "number" and kind ~= "nil" then
        refuse(2, "string, number, or table expected, but got " .. kind)
    end
    return wait(native.exec(uri, args or ""))
end

-- Query strings.

local function add_arg(list, name, value)
    if value == true then
        insert(list, name)
    elseif type(value) == "string" or type(value) == "number" then
        insert(list, name .. "=" .. escaped(tostring(value)))
    elseif value ~= false then
        raise("attempt to use " .. type(value) .. " as query arg value")
    end
end

function ngx.encode_args(...)
    counted(select("#", ...), 1, 1, "expecting 1 argument but seen %d")
    local list = {}
    for name, value in pairs(a_kind(1, "table", (...))) do
        if type(name) ~= "string" then
            raise('attempt to use a non-string key in the "args" option table')
        end
        name = escaped(name)
        if type(value) == "table" then
            for _, one in pairs(value) do add_arg(list, name, one) end
        else
            add_arg(list, name, value)
        end
    end
    return (concat(list, "&"))
end

-- Makes a table of a list of names and values. Repeated names get tables of values.
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

-- A table by names, made of a list if necessary, and "truncated" if some were left out.
local function named(all, list, truncated)
    if not all then all = gathered(list) end
    if truncated then return all, truncated end
    return all
end
native.named = named

function ngx.decode_args(...)
    local n, text, most = select("#", ...), ...
    counted(n, 1, 2, "expecting 1 or 2 arguments but seen %d")
    text = a_string(1, text)
    return named(native.decode_args(text, n == 2 and a_count(2, most) or nil))
end

-- Timers.

-- Longer than any server runs: stands for an infinite delay.
local EVER = 10 ^ 9

local function timer(every, ...)
    counted(select("#", ...), 2, math.huge, "expecting at least 2 arguments but got %d")
    local delay = a_number(1, (...))
    if every and delay < 0.001 and delay > -0.001 then raise("delay cannot be zero") end
    a_script(2, (select(2, ...)))
    delay = delay >= 0 and delay < EVER and delay or EVER
    return check(native.set_timer(delay, every, select(2, ...)))
end

ngx.timer = {
    at = function(...) return timer(false, ...) end,
    every = function(...) return timer(true, ...) end,
    pending_count = native.timers_pending,
    running_count = native.timers_running,
}

-- Light threads.

local function a_thread(i, thread)
    if type(thread) ~= "thread" then refuse(i, "lua thread expected") end
    return thread
end

-- A light thread may raise any value. It then returns a mark, the text for the log, and the value.
-- As in OpenResty, the text that the thread has passed to `error` goes before the one with its place.
local function failing(raised)
    local text = type(raised) == "string" and raised or "unknown reason"
    local failure = { raised, traceback(text, 2) }
    local called = getinfo(2, "f")
    if type(raised) == "string" and called and called.func == error then
        local _, passed_on = getlocal(2, 1)
        if passed_on ~= raised then failure[3] = passed_on end
    end
    return failure
end

local function ended(ok, ...)
    if ok then return ... end
    local failure = ...
    if type(failure) ~= "table" then failure = { failure, tostring(failure) } end
    if failure[3] ~= nil then return native.FAILED, failure[2], failure[3], failure[1] end
    return native.FAILED, failure[2], failure[1]
end

local function whole(f)
    return function(...) return ended(xpcall(f, failing, ...)) end
end

-- The first value is the place of the ended thread among those that were waited for.
local function joined(threads, place, ...)
    if place then light[threads[place]] = false end
    return ...
end

-- The coroutine that has spawned a thread. Only that one may wait for it or kill it.
local parents = setmetatable({}, { __mode = "kv" })

ngx.thread = {
    spawn = function(f, ...)
        local thread = create(whole(a_script(1, f)))
        light[thread], parents[thread] = true, running()
        wait(native.spawn(thread, ...))
        return thread
    end,
    wait = function(...)
        check(native.may_wait())
        if select("#", ...) == 0 then raise("at least one coroutine should be specified") end
        for i = 1, select("#", ...) do
            if light[a_thread(i, (select(i, ...)))] == nil then
                raise("attempt to wait on a coroutine that is not a user thread")
            end
            if parents[(select(i, ...))] ~= running() then
                raise("only the parent coroutine can wait on the thread")
            end
        end
        -- As in OpenResty, ended threads are skipped, unless they are the last argument.
        local n = select("#", ...)
        for i = 1, n do
            local thread = (select(i, ...))
            local is_gone = light[thread] == false or killed[thread]
            if is_gone and i == n then return nil, "already waited or killed" end
            if not is_gone and status(thread) == "dead" then break end
        end
        return joined({ ... }, wait(native.join(...)))
    end,
    kill = function(thread)
        check(native.may_wait())
        if light[a_thread(1, thread)] == nil then return nil, "not user thread" end
        if parents[thread] ~= running() then return nil, "killer not parent" end
        if coroutine.status(thread) == "zombie" then
            light[thread] = false
            return nil, "already terminated"
        end
        local ok, why = wait(native.kill(thread))
        if not ok then return nil, why end
        killed[thread] = true
        return ok
    end,
}

-- Fields of `ngx` that are computed on access. Without a request, `ngx.ctx` belongs to the running
-- coroutine.

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

local ctx_number, set_status = native.ctx_number, native.of_number(native.set_status)

local getters = {
    status = native.plain(native.get_status),
    headers_sent = native.plain(native.headers_sent),
    is_subrequest = native.plain(native.is_subrequest),
    ctx = function()
        local kind = ctx_number(nil, 0, nil, 0, 0, 0, 0, 0, 0)
        if kind == NUMBER then return kept[answer.number] end
        if kind == FALSE then return loose_ctx() end
        local base = kept[native.connection_ctx()]
        local ctx = base and setmetatable({}, { __index = base }) or {}
        check(native.set_ctx(ctx))
        return ctx
    end,
}

local setters = {
    status = function(value) return set_status(a_number(1, value)) end,
    ctx = function(value)
        if type(value) ~= "table" then raise("ctx should be a table while getting a " .. type(value)) end
        if native.has_request() then return check(native.set_ctx(value)) end
        without_request[coroutine.running() or WAIT] = value
    end,
}

native.getters = getters

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

-- Globals are shared by all requests of a loop, so creating one is logged.
setmetatable(_G, {
    __newindex = function(t, name, value)
        rawset(t, name, value)
        native.global_written(tostring(name), traceback("", 2))
    end,
})
