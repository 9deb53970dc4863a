-- The module `ngx.semaphore`.

local native = ...
local raise, check, wait, done_directly = native.raise, native.check, native.wait, native.done_directly
local setmetatable, type, tonumber = setmetatable, type, tonumber
local take, post, count = native.semaphore_take, native.semaphore_post, native.semaphore_count
local answer, answered_text, given = native.answer, native.answered_text, native.given
local TRUE, REFUSED = native.TRUE, native.REFUSED

local semaphore = { version = "0.1.31" }
local class = { __index = semaphore }
package.preload["ngx.semaphore"] = function() return semaphore end

-- The key of a semaphore's number. Scripts cannot make this key.
local NUMBER = {}

local function number_of(self)
    local number = type(self) == "table" and self[NUMBER]
    if not number or type(self.sem) ~= "userdata" then raise("not a semaphore instance") end
    return number
end

function semaphore.new(n)
    n = tonumber(n) or 0
    if n < 0 then raise("no negative number") end
    local sem, number = check(native.semaphore_new(n))
    return setmetatable({ sem = sem, [NUMBER] = number }, class)
end

function semaphore:wait(seconds)
    local number = number_of(self)
    seconds = tonumber(seconds)
    if not seconds then raise("attempt to perform arithmetic on a nil value") end
    if seconds < 0 then raise("no negative number") end
    local kind = take(nil, 0, nil, 0, number, 0, 0, 0, 0)
    if kind == TRUE then return true end
    if kind == REFUSED then return nil, answered_text() end
    if seconds < 0.001 then return nil, "timeout" end
    local refusal = native.semaphore_wait(self.sem, seconds)
    if refusal then return nil, refusal end
    return wait()
end

function semaphore:post(n)
    local number = number_of(self)
    n = n and tonumber(n) or 1
    if n < 1 then raise("positive number required") end
    done_directly(post(nil, 0, nil, 0, number, n, 0, 0, 0))
    return true
end

function semaphore:count()
    local number = number_of(self)
    return given(count(nil, 0, nil, 0, number, 0, 0, 0, 0))
end
