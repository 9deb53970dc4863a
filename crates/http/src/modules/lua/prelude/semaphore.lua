-- The module `ngx.semaphore`.

local native = ...
local raise, check, wait = native.raise, native.check, native.wait
local setmetatable, type, tonumber = setmetatable, type, tonumber
local acquire = native.semaphore_wait

local semaphore = {}
local class = { __index = semaphore }
package.preload["ngx.semaphore"] = function() return semaphore end

local function of(self)
    local sem = type(self) == "table" and self.sem
    if type(sem) ~= "userdata" then raise("not a semaphore instance") end
    return sem
end

function semaphore.new(n)
    n = tonumber(n) or 0
    if n < 0 then raise("no negative number") end
    return setmetatable({ sem = check(native.semaphore_new(n)) }, class)
end

function semaphore:wait(seconds)
    local sem = of(self)
    seconds = tonumber(seconds)
    if not seconds then raise("attempt to perform arithmetic on a nil value") end
    if seconds < 0 then raise("no negative number") end
    local refusal, at_once = acquire(sem, seconds)
    if refusal then return nil, refusal end
    if at_once == nil then return wait() end
    if at_once then return true end
    return nil, "timeout"
end

function semaphore:post(n)
    local sem = of(self)
    n = n and tonumber(n) or 1
    if n < 1 then raise("positive number required") end
    native.semaphore_post(sem, n)
    return true
end

function semaphore:count() return native.semaphore_count(of(self)) end
