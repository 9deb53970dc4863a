-- The modules of lua-resty-core, which libraries require. They are built in and never loaded from a
-- package path: the originals
-- call nginx functions through FFI, and replace functions of `ngx`.

local native = ...
local preload, error, type, tostring, ipairs = package.preload, error, type, tostring, ipairs
local raise, a_kind, a_number, re_match = native.raise, native.a_kind, native.a_number, native.re_match
local pairs, tonumber = pairs, tonumber
local concat, insert = table.concat, table.insert

local VERSION = "0.1.31"

local function provide(name, module)
    module.version = VERSION
    preload[name] = function() return module end
    return module
end

provide("resty.core", {})

for _, name in ipairs {
    "base64", "coroutine", "exit", "hash", "misc", "ndk", "param", "phase", "regex", "shdict", "socket", "socket.tcp",
    "uri", "var", "worker",
} do
    provide("resty.core." .. name, {})
end

provide("resty.core.time", {
    monotonic_msec = function() return native.monotonic_msec() end,
    monotonic_time = function() return native.monotonic_msec() / 1000 end,
})

local base = provide("resty.core.base", {
    FFI_OK = 0, FFI_ERROR = -1, FFI_AGAIN = -2, FFI_BUSY = -3, FFI_DONE = -4, FFI_DECLINED = -5, FFI_ABORT = -6,
    FFI_NO_REQ_CTX = -100, FFI_BAD_CONTEXT = -101,
    new_tab = require "table.new", clear_tab = require "table.clear",
    allows_subsystem = function(...)
        for _, name in ipairs { ... } do
            if name == ngx.config.subsystem then return end
        end
        error("unsupported subsystem: " .. ngx.config.subsystem, 2)
    end,
    get_request = function() return native.has_request() and ngx.req or nil end,
})

-- Buffers that libraries share for their FFI calls, made on first use.

local function made_once(make)
    local made
    return function()
        made = made or make(require "ffi")
        return made
    end
end

base.get_errmsg_ptr = made_once(function(ffi) return ffi.new("char *[1]") end)
base.get_size_ptr = made_once(function(ffi) return ffi.new("size_t[1]") end)

local buffer, buffer_size = nil, 4096

function base.get_string_buf_size() return buffer_size end

function base.set_string_buf_size(size)
    if size > 0 then buffer, buffer_size = nil, math.ceil(size) end
end

function base.get_string_buf(size, anew)
    local ffi = require "ffi"
    if anew or size > buffer_size then return ffi.new("char[?]", size) end
    buffer = buffer or ffi.new("char[?]", buffer_size)
    return buffer
end

-- A free index of a table, as luaL_ref finds one: the free indices are a linked list that begins at
-- 0.
function base.ref_in_table(t, value)
    if value == nil then return -1 end
    local place = t[0]
    if place and place ~= 0 then t[0] = t[place] else place = #t + 1 end
    t[place] = value
    return place
end

provide("resty.core.ctx", {
    get_ctx_table = function(ctx)
        if ctx then ngx.ctx = ctx end
        return ngx.ctx
    end,
    set_ctx_table = function(ctx) ngx.ctx = ctx end,
})

provide("resty.core.request", {
    set_req_header = function(name, value, override)
        return ngx.req[override and "set_header" or "add_header"](name, value)
    end,
})

provide("resty.core.response", {
    set_resp_header = function(_, name, value, add)
        if add then return ngx.resp.add_header(name, value) end
        ngx.header[name] = value
    end,
    bypass_if_checks = function() native.check(native.answer_always()) end,
})

provide("resty.core.utils", {
    str_replace_char = function(text, find, replace)
        return (text:gsub(find:sub(1, 1):gsub("%W", "%%%0"), (replace:sub(1, 1):gsub("%%", "%%%%"))))
    end,
})

provide("ngx.balancer", native.balancer)
provide("ngx.req", { add_header = ngx.req.add_header })
provide("ngx.resp", {
    add_header = ngx.resp.add_header,
    set_status = function(status, reason)
        status = a_number(1, status)
        if reason == nil or reason == "" then
            ngx.status = status
        else
            native.check(native.set_status_line(status, tostring(reason)))
        end
    end,
    bypass_if_checks = function() native.check(native.answer_always()) end,
})

local base64 = provide("ngx.base64", {})

function base64.encode_base64url(text)
    if type(text) ~= "string" then return nil, "must provide a string" end
    return (ngx.encode_base64(text, true):gsub("[+/]", { ["+"] = "-", ["/"] = "_" }))
end

function base64.decode_base64url(text)
    if type(text) ~= "string" then return nil, "must provide a string" end
    local plain = text:gsub("=*$", "")
    if plain:find("[^%w_-]") then return nil, "invalid input" end
    plain = plain:gsub("[-_]", { ["-"] = "+", ["_"] = "/" })
    local decoded = ngx.decode_base64(plain .. ("="):rep(-#plain % 4))
    if not decoded then return nil, "invalid input" end
    return decoded
end

-- As in MIME (RFC 2045), characters outside the alphabet are skipped.
function ngx.decode_base64mime(text)
    if type(text) ~= "string" then raise("string argument only") end
    return native.decode_base64((text:gsub("=.*$", ""):gsub("[^%w+/]", "")))
end

local re = provide("ngx.re", {})

-- Splits at matches. A match's first group follows its piece. An empty match separates two
-- characters. Empty pieces at the end are
-- left out, unless the number of pieces is limited.
function re.split(subject, pattern, options, ctx, most, into)
    subject, pattern = tostring(subject), a_kind(2, "string", pattern)
    most = most or 0
    if into and type(into) ~= "table" then raise("res is not a table") end
    local pieces, n = into or {}, 0
    local from, pos = ctx and ctx.pos or 1, ctx and ctx.pos or 1
    if from > #subject then
        pieces[1] = nil
        return pieces
    end
    local count = 1
    while most <= 0 or count < most do
        local err, found, first, last = re_match(subject, pattern, options or nil, pos)
        if err then return nil, err end
        if not found then break end
        pos = last < first and last + 2 or last + 1
        if last >= first or first > from then
            count, n = count + 1, n + 1
            pieces[n] = subject:sub(from, first - 1)
            if found[1] then
                n = n + 1
                pieces[n] = found[1]
            end
            from = last + 1
            if from > #subject then break end
        end
    end
    if ctx then ctx.pos = pos end
    if most > 0 or from <= #subject then
        n = n + 1
        pieces[n] = subject:sub(from)
    else
        while n > 0 and pieces[n] == "" do
            pieces[n] = nil
            n = n - 1
        end
    end
    pieces[n + 1] = nil
    return pieces
end

-- The limits of the stack size: what a script may ask for, and what PCRE needs.
local LARGEST_STACK, SMALLEST_STACK = 16 * 1024 * 1024, 32 * 1024

function re.opt(option, value)
    if option ~= "jit_stack_size" then raise("unrecognized option name") end
    if type(value) ~= "number" or not (value >= 0 and value <= LARGEST_STACK) then
        raise("invalid jit_stack_size")
    end
    if not native.re_stack(math.max(value - value % 1, SMALLEST_STACK)) then
        raise("changing jit stack size is not allowed when some regexs have already been compiled and cached")
    end
end

local errlog = provide("ngx.errlog", {})

function errlog.raw_log(level, text)
    if type(level) ~= "number" then raise("bad argument #1 to 'raw_log' (must be a number)") end
    if type(text) ~= "string" then raise("bad argument #2 to 'raw_log' (must be a string)") end
    if level < 0 or level > 8 then raise("bad log level") end
    native.raw_log(level, text)
end

local NOT_SET = 'directive "lua_capture_error_log" is not set'

-- Levels, times and lines in turn, the oldest first, of at most `most` lines.
function errlog.get_logs(most, into)
    if not most or most < 1 then most = 10 end
    local logs, n = into or {}, 0
    for _ = 1, most do
        local level, time, line = native.errlog_take()
        if level == nil then return nil, NOT_SET end
        if not level then break end
        logs[n + 1], logs[n + 2], logs[n + 3] = level, time, line
        n = n + 3
    end
    for i = #logs, n + 1, -1 do logs[i] = nil end
    return logs
end

function errlog.set_filter_level(level)
    if not level then return nil, 'missing "level" argument' end
    level = a_number(1, level)
    if level < 0 or level > 8 then return nil, ("bad log level: %d"):format(level) end
    if not native.errlog_level(level - level % 1) then return nil, NOT_SET end
    return true
end

function errlog.get_sys_filter_level()
    for level = ngx.DEBUG, ngx.STDERR, -1 do
        if native.is_logged(level) then return level end
    end
end

function ngx.worker.pids() return native.worker_pids() end

-- Scripts run in workers only. In nginx, `init_by_lua` runs in the master, so it sees that type.
local has_master = native.has_master

provide("ngx.process", {
    type = function()
        if not has_master then return "single" end
        if ngx.get_phase() == "init" then return "master" end
        return native.is_agent and "privileged agent" or "worker"
    end,
    get_master_pid = function() return has_master and native.parent_pid or native.worker_pid end,
    enable_privileged_agent = function(connections)
        if ngx.get_phase() ~= "init" then return nil, "API disabled in the current context" end
        connections = connections or 512
        if type(connections) ~= "number" or connections < 0 then
            return nil, "bad 'connections' argument: number expected and greater than 0"
        end
        native.want_agent(connections)
        return true
    end,
    signal_graceful_exit = function() native.quit() end,
})

-- lua-resty-events has a part in C: if only one worker is to accept from a unix socket, the others
-- stop listening on it.

local declined

preload["resty.events.disable_listening"] = function()
    return function(name)
        if declined == nil then
            local ok = type(name) == "string" and name:sub(1, 5) == "unix:" and native.decline_socket(name)
            if not ok then return nil, "failed to disable listening: " .. tostring(name) end
            declined = true
        end
        return true
    end
end

-- The module of lua-upstream-nginx-module, which OpenResty includes.

local a_string = native.a_string
local upstream = {
    get_upstreams = function() return native.upstream_names() end,
    get_servers = function(name) return native.upstream_servers(a_string(1, name)) end,
    get_primary_peers = function(name) return native.upstream_peers(a_string(1, name), false) end,
    get_backup_peers = function(name) return native.upstream_peers(a_string(1, name), true) end,
    set_peer_down = function(name, backup, id, down)
        return native.upstream_down(a_string(1, name), backup and true or false, a_number(3, id), down and true or false)
    end,
}
preload["ngx.upstream"] = function() return upstream end

-- In lua-nginx-module, this module gives access to functions of directives. Here these are
-- set-misc-nginx-module's that convert a text.

local DIGITS = "0123456789abcdefghijklmnopqrstuv"

-- RFC 4648's extended alphabet in lower case, five bits a digit.
local function encode_base32(text)
    local bits, held, out = 0, 0, {}
    local function digit() return DIGITS:sub(held + 1, held + 1) end
    for i = 1, #text do
        local byte = text:byte(i)
        for at = 7, 0, -1 do
            held, bits = held * 2 + math.floor(byte / 2 ^ at) % 2, bits + 1
            if bits == 5 then
                insert(out, digit())
                held, bits = 0, 0
            end
        end
    end
    if bits > 0 then
        held = held * 2 ^ (5 - bits)
        insert(out, digit())
    end
    return concat(out) .. ("="):rep(-#out % 8)
end

local function encode_hex(text)
    return (text:gsub(".", function(char) return ("%02x"):format(char:byte()) end))
end

local function decode_hex(text)
    if #text % 2 == 1 or text:find("%X") then return "" end
    return (text:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end))
end

local changes = {
    set_escape_uri = ngx.escape_uri, set_unescape_uri = ngx.unescape_uri,
    set_encode_base64 = ngx.encode_base64,
    set_decode_base64 = function(text) return ngx.decode_base64(text) or "" end,
    set_encode_base32 = encode_base32, set_encode_hex = encode_hex, set_decode_hex = decode_hex,
    set_md5 = ngx.md5, set_sha1 = function(text) return encode_hex(ngx.sha1_bin(text)) end,
    set_quote_sql_str = ngx.quote_sql_str,
}
for name, change in pairs(changes) do
    changes[name] = function(text) return change(tostring(text)) end
end

ndk = {
    set_var = setmetatable({}, {
        __index = function(_, name)
            return changes[name]
                or raise(('ndk.set_var: directive "%s" not found or does not use ndk_set_var_value'):format(tostring(name)))
        end,
        __newindex = function() raise("not allowed") end,
    }),
}
package.loaded.ndk = ndk

-- Modules that `stream` lacks fail with this message, even if a package path has a file of that
-- name.
if native.of_sessions then
    for _, name in ipairs { "ngx.ssl.proxysslcert", "ngx.ssl.proxysslverify", "ngx.proxyssl" } do
        preload[name] = function() error("module '" .. name .. "' is not provided", 3) end
    end
end
