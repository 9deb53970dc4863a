-- Functions that are called by FFI, so that machine code calls them as C would. Each takes two texts with their lengths and
-- five numbers, and returns what kind of answer it has left.

local native = ...
local ffi, raise, pairs = native.ffi, native.raise, pairs
local ffi_string = ffi.string

ffi.cdef(native.declarations)

-- Each call leaves another answer at one place, and a text, if there is one, at another.
local answer = ffi.cast("const weir_answer_t *", native.answer)
local room = ffi.cast("const char *", native.room)
native.answer, native.numbers = answer, ffi.cast("const int32_t *", room)

local NIL, TEXT, NUMBER, TRUE, FALSE, REFUSED = 0, 1, 2, 3, 4, -1
native.NIL, native.NUMBER, native.TRUE, native.FALSE = NIL, NUMBER, TRUE, FALSE
native.FORGOTTEN, native.REFUSED = 5, REFUSED

for name, pointer in pairs(native.direct) do native[name] = ffi.cast("weir_direct_t", pointer) end

-- Code that is not compiled yet calls these functions, too, so that they begin traces of their own. LuaJIT gives such a trace up
-- at a tail call of a function that is not written in Lua. After ten times it compiles no loop in which the function is called. So
-- functions of the prelude that scripts call often have parentheses around such a call: it is a plain call then.

-- The text is read before anything else is done: a finalizer of a script may call `ngx`, too.
local long_text = native.long_text
local function answered_text()
    local length = answer.length
    if length < 0 then return (long_text()) end
    return (ffi_string(room, length))
end
native.answered_text = answered_text

-- The value of an answer. A refusal is raised.
local function given(kind)
    if kind == TEXT then return answered_text() end
    if kind == NIL then return nil end
    if kind == NUMBER then return answer.number end
    if kind == TRUE then return true end
    if kind == FALSE then return false end
    return raise(answered_text())
end
native.given = given

-- The same of a function that has no value.
function native.done_directly(kind)
    if kind == REFUSED then raise(answered_text()) end
end

-- Functions of nothing, of a text and of a number.

function native.plain(f)
    return function() return given(f(nil, 0, nil, 0, 0, 0, 0, 0, 0)) end
end

function native.of_text(f)
    return function(text) return given(f(text, #text, nil, 0, 0, 0, 0, 0, 0)) end
end

function native.of_number(f)
    return function(number) return given(f(nil, 0, nil, 0, number, 0, 0, 0, 0)) end
end

-- Machine code may be as large as OpenResty's LuaJIT has it: scripts of large applications fit in.
require("jit").opt.start("maxtrace=8000", "maxrecord=16000", "minstitch=3", "maxmcode=40960")
