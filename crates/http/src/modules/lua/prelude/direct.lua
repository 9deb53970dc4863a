-- Functions that are called by FFI, so that machine code calls them like C functions. Each takes
-- two texts with their lengths and
-- five numbers, and returns the kind of its answer.

local native = ...
local ffi, raise, pairs = native.ffi, native.raise, pairs
local ffi_string = ffi.string

ffi.cdef(native.declarations)

-- Each call writes its answer to one struct, and a text, if there is one, to one buffer.
local answer = ffi.cast("const weir_answer_t *", native.answer)
local room = ffi.cast("const char *", native.room)
native.answer, native.numbers = answer, ffi.cast("const int32_t *", room)

local NIL, TEXT, NUMBER, TRUE, FALSE, REFUSED = 0, 1, 2, 3, 4, -1
native.NIL, native.NUMBER, native.TRUE, native.FALSE = NIL, NUMBER, TRUE, FALSE
native.FORGOTTEN, native.REFUSED = 5, REFUSED

for name, pointer in pairs(native.direct) do native[name] = ffi.cast("weir_direct_t", pointer) end

-- Code that is not compiled yet calls these functions, too, which starts traces in them. LuaJIT
-- aborts such a trace at a tail call
-- of a function that is not written in Lua. After ten aborts it compiles no loop that calls the
-- function. So often called functions
-- of the prelude put such a call in parentheses, which makes it a plain call.

-- The text is read before anything else: a finalizer of a script may call `ngx`, which overwrites
-- it.
local long_text = native.long_text
local function answered_text()
    local length = answer.length
    if length < 0 then return (long_text()) end
    return (ffi_string(room, length))
end
native.answered_text = answered_text

-- The value of an answer. An error is raised.
local function given(kind)
    if kind == TEXT then return answered_text() end
    if kind == NIL then return nil end
    if kind == NUMBER then return answer.number end
    if kind == TRUE then return true end
    if kind == FALSE then return false end
    return raise(answered_text())
end
native.given = given

-- Raises the error of an answer. For functions without a value.
function native.done_directly(kind)
    if kind == REFUSED then raise(answered_text()) end
end

-- Wrappers for functions without arguments, of a text and of a number.

function native.plain(f)
    return function() return given(f(nil, 0, nil, 0, 0, 0, 0, 0, 0)) end
end

function native.of_text(f)
    return function(text) return given(f(text, #text, nil, 0, 0, 0, 0, 0, 0)) end
end

function native.of_number(f)
    return function(number) return given(f(nil, 0, nil, 0, number, 0, 0, 0, 0)) end
end

-- The limits of OpenResty's LuaJIT for machine code, so that scripts of large applications fit.
require("jit").opt.start("maxtrace=8000", "maxrecord=16000", "minstitch=3", "maxmcode=40960")
