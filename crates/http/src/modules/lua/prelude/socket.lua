-- `ngx.socket.tcp`: a socket is a table with a native handle.

local native = ...
local check, wait = native.check, native.wait
local raise, refuse, counted = native.raise, native.refuse, native.counted
local a_string, a_number, a_kind, a_count = native.a_string, native.a_number, native.a_kind, native.a_count
local a_message, answered = native.a_message, native.answered
local setmetatable, type, tostring, tonumber, select = setmetatable, type, tostring, tonumber, select
local pairs, ipairs, math, pcall, require = pairs, ipairs, math, pcall, require
local ffi = native.ffi

-- Scripts find the methods in the metatable itself.
local methods = {}
methods.__index = methods
local class = methods
native.tcp_methods = methods

-- Functions that return a socket's native handle: if it has a connection, if it may receive, and if
-- it may send. After the peer has
-- closed its direction, a socket may still send.
local function with_test(test)
    return function(self)
        local socket = a_kind(1, "table", self).socket
        return socket and test(socket) and socket
    end
end

local connected, readable, writable =
    with_test(native.socket_is_open), with_test(native.socket_reads), with_test(native.socket_writes)

-- The handle of a socket that was connected once. Its options are gone with the connection.
local function once_connected(self)
    if not a_kind(1, "table", self).connected then raise("socket is never created nor connected") end
    return self.socket
end

-- The host without the port that may stand behind it, and the port: the host's own, or the one that
-- is given. As in nginx, the host's own counts. For text that is no host: nil, nil and why.
function native.host_and_port(text, port)
    local host, rest, why = text, "", nil
    if text:sub(1, 5) == "unix:" then
        if text == "unix:" then why = "no path in the unix domain socket" end
    elseif text:sub(1, 1) == "[" then
        host, rest = text:match("^(%[[^%]/]*%])([^/]*)$")
        if not host or not rest:find("^:") and rest ~= "" then why = "invalid host" end
    elseif text:find("[/?]") then
        why = "invalid host"
    elseif not text:find("^%x*:[%x.]*:[%x:.]*$") then
        -- Not an IPv6 address, which may stand without brackets here.
        host, rest = text:match("^([^:]*)(.*)$")
    end
    if not why and rest ~= "" then
        port = tonumber(rest:match("^:(%d+)$"))
        if not port or port < 1 or port > 65535 then why = "invalid port" end
    end
    if not why and (host == "" or host == "[]") then why = "no host" end
    if why then return nil, nil, ('failed to parse host name "%s": %s'):format(text, why) end
    return host, port
end

local host_and_port = native.host_and_port

-- Parses the arguments after the host: a port, unless the host is a path, and a table of options.
local function destination(n, port, options)
    if type(port) == "table" or n == 2 then return nil, port end
    local number = tonumber(port)
    if not number then return nil, options end
    if not (number >= 0 and number <= 65535) then
        return nil, nil, "bad port number: " .. tostring(port)
    end
    return number - number % 1, options
end

-- A number among the options, which are argument n.
local function option_of(n, options, name, least)
    local value = options[name]
    local number = tonumber(value)
    if not number then
        if value ~= nil and name == "pool_size" then refuse(n, ('bad "%s" option type: %s'):format(name, type(value))) end
        return nil
    end
    if not (number >= least and number < 2 ^ 31) then refuse(n, ('bad "%s" option value: %d'):format(name, number)) end
    return number - number % 1
end

function methods.connect(...)
    local n, self, host, port, options = select("#", ...), ...
    counted(n, 2, 4, "ngx.socket connect: expecting 2, 3, or 4 arguments (including the object), but seen %d")
    a_kind(1, "table", self)
    host = a_string(2, host)
    local wrong
    port, options, wrong = destination(n, port, options)
    if wrong then return nil, wrong end
    if not port and host:sub(1, 5) ~= "unix:" then return nil, "missing the port number" end
    host, port, wrong = host_and_port(host, port)
    if wrong then return nil, wrong end
    if type(options) ~= "table" then options = {} end
    self.connected = true
    local size, backlog = option_of(n, options, "pool_size", 1), option_of(n, options, "backlog", 0)
    local pool = options.pool or nil
    if pool ~= nil and type(pool) ~= "string" and type(pool) ~= "number" then
        refuse(n, 'bad "pool" option type: ' .. type(pool))
    end
    return wait(native.socket_connect(self.socket, host, port, pool, size, backlog))
end

function methods.bind(...)
    local n, self, address, port = select("#", ...), ...
    counted(n, 2, 3, "expecting 2 or 3 arguments, but got %d")
    a_kind(1, "table", self)
    local number = n == 2 and 0 or tonumber(port)
    if not number then return nil, "expecting port to be a number but got type: " .. type(port) end
    if not (number >= 0 and number <= 65535) then return nil, "bad port number: " .. tostring(port) end
    if native.socket_bind(self.socket, a_string(2, address), number - number % 1) then return true end
    return nil, "bad address"
end

function methods.send(...)
    local n, self, data = select("#", ...), ...
    counted(n, 2, 2, "expecting 2 arguments (including the object), but got %d")
    local socket = writable(self)
    if not socket then return nil, "closed" end
    return wait(native.socket_send(socket, a_message(2, data)))
end

-- Scripts check the type of a session, so they get a pointer in place of the native handle.
local sessions = setmetatable({}, { __mode = "k" })
local newest = 0

local function pointer_to(session)
    -- In `stream`, OpenResty gives userdata, too.
    if native.of_sessions then
        sessions[session] = session
        return session
    end
    newest = newest + 1
    local pointer = ffi.cast("void *", newest * 16)
    sessions[pointer] = session
    return pointer
end

function methods.sslhandshake(...)
    local n, self, session, name, verify = select("#", ...), ...
    counted(n, 1, 5, "ngx.socket sslhandshake: expecting 1 ~ 5 arguments (including the object), but seen %d")
    local socket = once_connected(self)
    -- Verification against an empty name would accept any certificate.
    if name == "" then return nil, "SSL_set_tlsext_host_name failed" end
    local known = session and sessions[session] or nil
    local made, why = wait(native.socket_secure(socket, name, verify and true or false, session ~= false, known))
    if type(made) == "userdata" then return pointer_to(made) end
    return made, why
end

function methods:getsslsession()
    if not connected(self) then return nil, "closed" end
    local session = native.socket_session(self.socket)
    if not session then return nil, "not an SSL connection" end
    return pointer_to(session)
end

function methods:setclientcert(cert, key)
    if not cert and not key then
        native.socket_shows(self.socket)
        return true
    end
    if not cert or not key then
        return nil, "client certificate must be supplied with corresponding private key"
    end
    local chain, own_key = native.certificate_handle(cert), native.key_handle(key)
    if not chain then return nil, "bad cert arg: cdata expected, got " .. type(cert) end
    if not own_key then return nil, "bad pkey arg: cdata expected, got " .. type(key) end
    local why = native.socket_shows(self.socket, chain, own_key)
    if why then return nil, why end
    return true
end

-- Drops the last value, which says whether a delimiter was reached.
local function first(data, err, part)
    if data then return data end
    return nil, err, part
end

-- The results of a native function that receives: the bytes that it returns at once, or those for
-- which it waits.
local function received(refusal, data)
    if data then return data end
    return first(wait(refusal))
end

-- The pattern of `receive`: a line, everything, or a number of bytes.
local function pattern_of(n, pattern)
    if n == 1 then return nil end
    local number = type(pattern) == "number" and pattern or type(pattern) == "string" and tonumber(pattern)
    if number then
        if not (number >= 0 and number < 2 ^ 53) then refuse(2, "bad pattern argument") end
        return number - number % 1
    end
    if type(pattern) ~= "string" then refuse(2, "bad pattern argument") end
    if #pattern ~= 2 or pattern:sub(1, 1) ~= "*" then refuse(2, "bad pattern argument: " .. pattern) end
    if pattern ~= "*l" and pattern ~= "*a" then refuse(2, "bad pattern argument") end
    return pattern
end

function methods.receive(...)
    local n, self, pattern = select("#", ...), ...
    counted(n, 1, 2, "expecting 1 or 2 arguments (including the object), but got %d")
    local socket = readable(self)
    if not socket then return nil, "closed" end
    return received(native.socket_receive(socket, pattern_of(n, pattern)))
end

function methods.receiveany(...)
    local n, self, most = select("#", ...), ...
    counted(n, 2, 2, "expecting 2 arguments (including the object), but got %d")
    local socket = readable(self)
    if not socket then return nil, "closed" end
    most = tonumber(most)
    if not (most and most >= 1 and most < 2 ^ 53) then refuse(2, "bad max argument") end
    return received(native.socket_receive_any(socket, most - most % 1))
end

function methods.receiveuntil(...)
    local n, self, mark, options = select("#", ...), ...
    counted(n, 2, 3, "expecting 2 or 3 arguments (including the object), but got %d")
    local inclusive = false
    if n == 3 then
        inclusive = a_kind(3, "table", options).inclusive or false
        if type(inclusive) ~= "boolean" then
            raise('bad "inclusive" option value type: ' .. type(inclusive))
        end
    end
    a_kind(1, "table", self)
    mark = a_string(2, mark)
    if mark == "" then return nil, "pattern is empty" end
    local over = false
    return function(...)
        counted(select("#", ...), 0, 1, "expecting 0 or 1 argument, but seen %d")
        local most = select("#", ...) == 1 and a_count(1, (...)) or nil
        -- A length of 0 means no limit.
        if most == 0 then most = nil end
        local socket = readable(self)
        if not socket then return nil, "closed" end
        if over then
            over = false
            return nil, nil, nil
        end
        local refusal, data, reached = native.socket_until(socket, mark, inclusive, most)
        local err, part
        if not data then data, err, part, reached = wait(refusal) end
        if not data then return nil, err, part end
        over = most and reached
        return data
    end
end

-- Milliseconds. What is no number is 0, which keeps the configuration's timeout.
local function time_of(value)
    value = tonumber(value) or 0
    if not (value >= 0 and value < 2 ^ 31) then raise("bad timeout value") end
    return value
end

function methods.settimeout(...)
    local n, self, ms = select("#", ...), ...
    counted(n, 2, 2, "ngx.socket settimeout: expecting 2 arguments (including the object) but seen %d")
    ms = time_of(ms)
    native.socket_timeouts(a_kind(1, "table", self).socket, ms, ms, ms)
end

function methods.settimeouts(...)
    local n, self, connect, send, read = select("#", ...), ...
    counted(n, 4, 4, "ngx.socket settimeouts: expecting 4 arguments (including the object) but seen %d")
    connect, send, read = time_of(connect), time_of(send), time_of(read)
    native.socket_timeouts(a_kind(1, "table", self).socket, connect, send, read)
end

function methods.setkeepalive(...)
    local n, self, ms, most = select("#", ...), ...
    counted(n, 1, 3, "expecting 1 to 3 arguments (including the object), but got %d")
    local socket = connected(self)
    if not socket then return nil, "closed" end
    ms = ms ~= nil and a_count(2, ms) or nil
    if most ~= nil then most = a_count(3, most) or 0 end
    if most == 0 then refuse(3, 'bad "pool_size" option value: 0') end
    return check(native.socket_keep(socket, ms, most))
end

function methods.close(...)
    local n, self = select("#", ...), ...
    counted(n, 1, 1, "expecting 1 argument (including the object) but seen %d")
    if not connected(self) then return nil, "closed" end
    return check(native.socket_close(self.socket))
end

function methods.getreusedtimes(...)
    local n, self = select("#", ...), ...
    counted(n, 1, 1, "expecting 1 argument (including the object), but got %d")
    local socket = connected(self)
    if not socket then return nil, "closed" end
    return native.socket_reused(socket)
end

-- The supported socket options.
local known = {}
for _, name in ipairs { "keepalive", "keepintvl", "keepcnt", "reuseaddr", "tcp-nodelay", "sndbuf", "rcvbuf" } do
    known[name] = true
end

function methods:getoption(option)
    local socket = once_connected(self)
    if option == nil then return nil, 'missing the "option" argument' end
    if not known[option] then return nil, "unsupported option " .. tostring(option) end
    if not connected(self) then return nil, "closed" end
    return answered(native.socket_get_option(socket, option))
end

function methods:setoption(option, value)
    local socket = once_connected(self)
    if option == nil then return nil, 'missing the "option" argument' end
    if value == nil then return nil, 'missing the "value" argument' end
    if not known[option] then return nil, "unsupported option " .. tostring(option) end
    if value == true then value = 1 elseif value == false then value = 0 end
    if type(value) ~= "number" or not (value > -2 ^ 31 - 1 and value < 2 ^ 31) then
        raise(("bad argument #3 to '?' (cannot convert '%s' to 'int')"):format(type(value)))
    end
    if not connected(self) then return nil, "closed" end
    return answered(native.socket_set_option(socket, option, value < 0 and math.ceil(value) or math.floor(value)))
end

-- OpenSSL functions that read a certificate store (X509_STORE), under names that no script
-- declares.
local OPENSSL = [[
    void *weir_store_certificates(void *) __asm__("X509_STORE_get1_all_certs");
    int weir_stack_size(const void *) __asm__("OPENSSL_sk_num");
    void *weir_stack_at(const void *, int) __asm__("OPENSSL_sk_value");
    void weir_stack_free(void *, void (*)(void *)) __asm__("OPENSSL_sk_pop_free");
    void weir_certificate_free(void *) __asm__("X509_free");
    int weir_certificate_der(void *, unsigned char **) __asm__("i2d_X509");
]]

local openssl

-- The certificates of a store, in DER.
local function certificates_of(store)
    local ffi = require "ffi"
    if not openssl then
        ffi.cdef(OPENSSL)
        openssl = ffi.C
    end
    local stack, all = openssl.weir_store_certificates(store), {}
    for i = 0, openssl.weir_stack_size(stack) - 1 do
        local certificate = openssl.weir_stack_at(stack, i)
        local size = openssl.weir_certificate_der(certificate, nil)
        if size > 0 then
            local der = ffi.new("unsigned char[?]", size)
            openssl.weir_certificate_der(certificate, ffi.new("unsigned char *[1]", der))
            all[#all + 1] = ffi.string(der, size)
        end
    end
    openssl.weir_stack_free(stack, openssl.weir_certificate_free)
    return all
end

function methods:settrustedstore(store)
    if store ~= nil and type(store) ~= "cdata" then return nil, "bad store arg: cdata expected, got " .. type(store) end
    local socket = once_connected(self)
    if not connected(self) then return nil, "closed" end
    if store == nil then
        native.socket_trust(socket)
        return true
    end
    local ok, all = pcall(certificates_of, store)
    if not ok then return nil, "the store cannot be read: " .. all end
    native.socket_trust(socket, all)
    return true
end

function methods.getfd(...)
    local n, self = select("#", ...), ...
    counted(n, 1, 1, "expecting 1 argument (including the object) but seen %d")
    local socket = connected(self)
    if not socket then return nil, "closed" end
    local fd = native.socket_descriptor(socket)
    if not fd then return nil, "closed" end
    return fd
end

-- OpenSSL has these, rustls has not.
for name, what in pairs { getsslpointer = "connection", getsslctx = "context" } do
    methods[name] = function(self)
        local socket = once_connected(self)
        if not connected(self) then return nil, "closed" end
        if not native.socket_is_secured(socket) then return nil, "no ssl " .. what end
        return nil, "not supported: there is no access to a " .. what .. " of OpenSSL"
    end
end

-- The client's connection, which ends with the request.

local raw_class = {}
raw_class.__index = raw_class
for _, name in ipairs {
    "send", "receive", "receiveany", "receiveuntil", "settimeout", "settimeouts", "getfd", "getoption", "setoption",
} do
    raw_class[name] = methods[name]
end

-- The request's body, which a script can only receive.

local body_class = {}
body_class.__index = body_class
for _, name in ipairs {
    "receive", "receiveany", "receiveuntil", "settimeout", "settimeouts", "getfd", "getoption", "setoption",
} do
    body_class[name] = methods[name]
end

function ngx.req.socket(...)
    local n, raw = select("#", ...), ...
    counted(n, 0, 1, "expecting 0 or 1 argument, but got %d")
    if native.has_request() and ngx.is_subrequest then raise("attempt to read the request body in a subrequest") end
    if raw then
        local socket, why = wait(native.raw_socket())
        if not socket then return nil, why end
        return setmetatable({ socket = socket, connected = true }, raw_class)
    end
    local socket, why = check(native.body_socket())
    if not socket then return nil, why end
    return setmetatable({ socket = socket, connected = true }, body_class)
end

ngx.socket = {}

function ngx.socket.tcp(...)
    counted(select("#", ...), 0, 0, "expecting zero arguments, but got %d")
    return setmetatable({ socket = check(native.socket_new()) }, class)
end

ngx.socket.stream = ngx.socket.tcp

function ngx.socket.connect(...)
    local socket = ngx.socket.tcp()
    local n = select("#", ...)
    if n >= 1 and n <= 3 then a_string(1, (...)) end
    local ok, err = socket:connect(...)
    if not ok then return nil, err end
    return socket
end
