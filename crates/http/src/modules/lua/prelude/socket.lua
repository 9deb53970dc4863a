-- `ngx.socket.tcp`: a socket is a table that holds its native one.

local native = ...
local check, wait = native.check, native.wait
local setmetatable, type, tostring = setmetatable, type, tostring

local methods = {}
local class = { __index = methods }

function methods:connect(host, port, options)
    if type(port) == "table" then port, options = nil, port end
    return wait(native.socket_connect(self.socket, host, tonumber(port), options and options.pool))
end

function methods:send(data)
    return wait(native.socket_send(self.socket, data))
end

-- Sessions are not handed out: `true` stands for one.
function methods:sslhandshake(_, name, verify)
    -- An empty name is none.
    if name == "" then name = nil end
    return wait(native.socket_secure(self.socket, name, verify == true))
end

-- The last value tells whether a mark was reached, which is of no matter here.
local function first(data, err, part)
    if data then return data end
    return nil, err, part
end

function methods:receive(pattern)
    if type(pattern) == "string" and tonumber(pattern) then pattern = tonumber(pattern) end
    return first(wait(native.socket_receive(self.socket, pattern)))
end

function methods:receiveany(most)
    return first(wait(native.socket_receive_any(self.socket, tonumber(most))))
end

function methods:receiveuntil(mark, options)
    local inclusive = options ~= nil and options.inclusive == true
    local over = false
    return function(most)
        if most and over then
            over = false
            return nil
        end
        local data, err, part, reached = wait(native.socket_until(self.socket, mark, inclusive, most))
        if not data then return nil, err, part end
        over = reached
        return data
    end
end

-- What is no number is 0, which leaves the times of the configuration.
function methods:settimeout(ms)
    ms = tonumber(ms) or 0
    native.socket_timeouts(self.socket, ms, ms, ms)
end

function methods:settimeouts(connect, send, read)
    native.socket_timeouts(self.socket, connect or 0, send or 0, read or 0)
end

function methods:setkeepalive(ms, most) return check(native.socket_keep(self.socket, ms, most)) end
function methods:close() return native.socket_close(self.socket) end
function methods:getreusedtimes() return native.socket_reused(self.socket) end
function methods:setoption() return 1 end

ngx.socket = {}

function ngx.socket.tcp()
    return setmetatable({ socket = check(native.socket_new()) }, class)
end

ngx.socket.stream = ngx.socket.tcp

function ngx.socket.connect(host, port, options)
    local socket = ngx.socket.tcp()
    local ok, err = socket:connect(host, port, options)
    if not ok then return nil, err end
    return socket
end
