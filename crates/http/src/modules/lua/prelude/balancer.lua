-- The module `ngx.balancer`.

local native = ...
local raise, a_string, a_number = native.raise, native.a_string, native.a_number
local type, tonumber = type, tonumber

local balancer = {}
native.balancer = balancer

-- Needs a request. Other errors are returned as the second value.
local function requested()
    if not native.has_request() then raise("no request found") end
end

local function done(refusal, warning)
    if refusal then return nil, refusal end
    if warning then return true, warning end
    return true
end

function balancer.set_current_peer(address, port, host)
    requested()
    address = a_string(1, address)
    port = a_number(2, port or 0)
    -- APISIX's OpenResty takes the pool's name and size here. weir finds pools by the server, so
    -- they are ignored.
    if type(host) == "table" and (host.pool or host.pool_size) then host = nil end
    if host ~= nil and type(host) ~= "string" then
        raise("bad argument #3 to 'set_current_peer' (string expected, got " .. type(host) .. ")")
    end
    return done(native.balancer_peer(address, port, host))
end

function balancer.set_more_tries(count)
    requested()
    return done(native.balancer_tries(a_number(1, count)))
end

function balancer.get_last_failure()
    requested()
    local refusal, kind, status = native.balancer_failure()
    if refusal then return nil, nil, refusal end
    if kind then return kind, status end
    return nil
end

local function seconds(value, what)
    if not value then return 0 end
    if type(value) ~= "number" or value <= 0 then raise("bad " .. what .. " timeout") end
    return value
end

function balancer.set_timeouts(connect, send, read)
    requested()
    local ok, why = done(native.balancer_timeouts(
        seconds(connect, "connect"), seconds(send, "send"), seconds(read, "read")))
    return ok or false, why
end

local function not_negative(i, value, usual)
    if not value then return usual end
    local wrong = type(value) ~= "number" and "number expected, got " .. type(value) or value < 0 and "expected >= 0"
    if wrong then raise(("bad argument #%d to 'enable_keepalive' (%s)"):format(i, wrong)) end
    return value
end

function balancer.enable_keepalive(idle, requests)
    requested()
    return done(native.balancer_keepalive(not_negative(1, idle, 60), not_negative(2, requests, 100)))
end

function balancer.recreate_request()
    requested()
    return done(native.balancer_recreate())
end

function balancer.set_upstream_tls(on)
    requested()
    return done(native.balancer_tls(not (on == 0 or on == false)))
end

function balancer.bind_to_local_addr(address)
    requested()
    if type(address) ~= "string" then
        raise("bad argument #1 to 'bind_to_local_addr' (string expected, got " .. type(address) .. ")")
    end
    return done(native.balancer_bind(address))
end
