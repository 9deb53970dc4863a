//! Functions that scripts call by LuaJIT's FFI, directly from its machine code. A function of Lua's
//! own C interface costs ten times as much, since its calls end a compiled trace.
//!
//! A function gets two texts and some numbers, and leaves an [`Answer`]. The script reads it from
//! memory before it calls another function. A function never uses the Lua state: it cannot raise an
//! error, and no jump crosses its frame.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::slice;

use mlua::LightUserData;

/// The C declarations of these functions and of their answers.
pub const DECLARATIONS: &str = "
    typedef struct { double number, other; int32_t length, call; } weir_answer_t;
    typedef int (*weir_direct_t)(const char *, uint32_t, const char *, uint32_t,
        double, double, double, double, double);
";

/// The longest text that a script reads directly from memory.
pub const ROOM: usize = 16 * 1024;

/// Buffers of longer answers are freed again.
const KEPT: usize = 1 << 16;

/// The arguments of a call.
#[derive(Debug, Clone, Copy)]
pub struct Passed<'a> {
    /// The first text; nil is empty.
    pub first: &'a [u8],
    /// The second text; nil is empty.
    pub second: &'a [u8],
    /// The numeric arguments.
    pub numbers: [f64; 5],
}

/// The results of a call, in addition to the number that the function returns.
#[derive(Debug, Default)]
pub struct Answer {
    /// A number.
    pub number: f64,
    /// Another number.
    pub other: f64,
    text: Vec<u8>,
    has_text: bool,
}

impl Answer {
    /// The buffer for a text, empty at first. If a function does not call this, the text of an
    /// earlier call remains.
    pub fn text(&mut self) -> &mut Vec<u8> {
        if !self.has_text {
            self.has_text = true;
            self.text.clear();
            self.text.shrink_to(KEPT);
        }
        &mut self.text
    }

    /// Sets the text.
    pub fn set_text(&mut self, text: Vec<u8>) {
        (self.text, self.has_text) = (text, true);
    }
}

/// The answer as the script sees it, by [`DECLARATIONS`].
#[repr(C)]
#[derive(Clone, Copy)]
struct Shown {
    number: f64,
    other: f64,
    /// The length of the text; negative if it exceeds [`ROOM`].
    length: i32,
    /// The number of the call with this answer.
    call: i32,
}

/// A script may read it at any time, so it never moves.
#[repr(C, align(16))]
struct Room(UnsafeCell<[u8; ROOM]>);

thread_local! {
    static ANSWER: Cell<Answer> =
        const { Cell::new(Answer { number: 0.0, other: 0.0, text: Vec::new(), has_text: false }) };
    static SHOWN: Cell<Shown> = const { Cell::new(Shown { number: 0.0, other: 0.0, length: 0, call: 0 }) };
    static TEXT: Room = const { Room(UnsafeCell::new([0; ROOM])) };
}

/// The addresses of this thread's answers: a `weir_answer_t *`, and a `char *` for texts. The
/// pointers are valid as long as the thread, and a VM cannot move to another one.
#[must_use]
pub fn answer() -> (LightUserData, LightUserData) {
    let shown = SHOWN.with(|shown| LightUserData(shown.as_ptr().cast()));
    (shown, TEXT.with(|room| LightUserData(room.0.get().cast())))
}

/// The text of the last answer, if it exceeds [`ROOM`].
#[must_use]
pub fn long_text() -> Vec<u8> {
    let mut answer = ANSWER.try_with(Cell::take).unwrap_or_default();
    let text = std::mem::take(&mut answer.text);
    let _ = ANSWER.try_with(|kept| kept.set(answer));
    text
}

/// A function as a `weir_direct_t`, for the program's own Lua code, which passes texts with their
/// lengths. `f` returns a number. If it panics, the script gets [`PANICKED`] and the panic's
/// message as the text.
///
/// `f` has no state. It must not run scripts, since LuaJIT does not expect to be called here.
pub fn pointer<F>(_: F) -> LightUserData
where
    F: Fn(&Passed<'_>, &mut Answer) -> i32 + Copy + 'static,
{
    let f: Entry = enter::<F>;
    LightUserData(f as *mut c_void)
}

/// The result of a function that panicked.
pub const PANICKED: i32 = -1;

type Entry = unsafe extern "C" fn(*const u8, u32, *const u8, u32, f64, f64, f64, f64, f64) -> i32;

/// # Safety
///
/// Each pointer is null or has as many bytes as the number behind it says, which do not change meanwhile. A value of `F`
/// exists.
unsafe extern "C" fn enter<F>(
    first: *const u8,
    first_length: u32,
    second: *const u8,
    second_length: u32,
    a: f64,
    b: f64,
    c: f64,
    d: f64,
    e: f64,
) -> i32
where
    F: Fn(&Passed<'_>, &mut Answer) -> i32 + Copy + 'static,
{
    const { assert!(size_of::<F>() == 0, "a function for scripts has no state") };
    // SAFETY: a value without bytes can be read from any aligned place, and `pointer` was given such a value, which may
    // be copied.
    let f = unsafe { NonNull::<F>::dangling().read() };
    // SAFETY: as the caller promises.
    let (first, second) = unsafe { (bytes(first, first_length), bytes(second, second_length)) };
    // A VM that ends with its thread may call this after the thread-local answer was dropped.
    let mut answer = ANSWER.try_with(Cell::take).unwrap_or_default();
    answer.has_text = false;
    let passed = Passed { first, second, numbers: [a, b, c, d, e] };
    // Unwinding must not reach LuaJIT.
    let code = catch_unwind(AssertUnwindSafe(|| f(&passed, &mut answer))).unwrap_or_else(|panic| {
        answer.set_text(text_of(&*panic).as_bytes().to_vec());
        PANICKED
    });
    let (length, call) = (show(&answer), SHOWN.get().call.wrapping_add(1));
    SHOWN.set(Shown { number: answer.number, other: answer.other, length, call });
    let _ = ANSWER.try_with(|kept| kept.set(answer));
    code
}

/// Copies an answer's text to where scripts read it. Returns its length.
fn show(answer: &Answer) -> i32 {
    let text = &answer.text;
    if text.len() > ROOM {
        return -1;
    }
    if answer.has_text {
        // SAFETY: the room is this thread's, and LuaJIT, which alone reads it, does not run now. The text fits, and is not
        // in the room.
        TEXT.with(|room| unsafe {
            room.0.get().cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        });
    }
    text.len() as i32
}

/// # Safety
///
/// `at` is null, or has so many bytes, which do not change for `'a`.
unsafe fn bytes<'a>(at: *const u8, length: u32) -> &'a [u8] {
    if at.is_null() {
        return &[];
    }
    // SAFETY: not null, and the rest is the caller's promise.
    unsafe { slice::from_raw_parts(at, length as usize) }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a function of ngx failed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlua::Lua;

    #[expect(clippy::disallowed_methods, reason = "the scripts stand below")]
    fn vm() -> Lua {
        let lua = crate::lua::vm_without_restrictions();
        let (shown, room) = answer();
        let prepare = "local ffi, declarations, shown, room, long = require 'ffi', ...
            ffi.cdef(declarations)
            answer, room = ffi.cast('const weir_answer_t *', shown), ffi.cast('const char *', room)
            function direct(f) return ffi.cast('weir_direct_t', f) end
            function text()
                return answer.length < 0 and long() or ffi.string(room, answer.length)
            end";
        let long = lua.create_function(|lua, ()| lua.create_string(long_text())).unwrap();
        lua.load(prepare).call::<()>((DECLARATIONS, shown, room, long)).unwrap();
        lua
    }

    #[test]
    fn texts_and_numbers_go_there_and_back() {
        let lua = vm();
        let f = |passed: &Passed<'_>, answer: &mut Answer| {
            answer.text().extend_from_slice(passed.second);
            answer.text().extend_from_slice(passed.first);
            answer.number = passed.numbers.iter().sum();
            answer.other = passed.numbers[4];
            7
        };
        lua.globals().set("f", pointer(f)).unwrap();
        let code = r"f = direct(f)
            for i = 1, 300 do
                local a, b = ('x'):rep(i * i), 'a\0b'
                local code = f(a, #a, b, #b, 1, 2, 3, 4, 0.5)
                assert(code == 7 and answer.number == 10.5 and answer.other == 0.5)
                assert((answer.length < 0) == (#a + 3 > 16384))
                assert(text() == b .. a)
                assert(f(nil, 0, nil, 0, 0, 0, 0, 0, i) == 7 and text() == '' and answer.number == i)
            end";
        lua.load(code).exec().unwrap();
    }

    #[test]
    fn a_text_stays_where_others_leave_none() {
        let lua = vm();
        let f = |passed: &Passed<'_>, answer: &mut Answer| {
            if !passed.first.is_empty() {
                answer.text().extend_from_slice(passed.first);
            }
            0
        };
        lua.globals().set("f", pointer(f)).unwrap();
        let code = "f = direct(f)
            for i = 1, 200 do
                f('abc', 3, nil, 0, 0, 0, 0, 0, 0)
                f(nil, 0, nil, 0, 0, 0, 0, 0, 0)
                assert(text() == 'abc')
            end";
        lua.load(code).exec().unwrap();
    }

    #[test]
    fn a_panic_is_a_text() {
        let lua = vm();
        let f = |passed: &Passed<'_>, _: &mut Answer| -> i32 {
            assert!(passed.numbers[0] < 100.0, "more than {}", 100);
            0
        };
        lua.globals().set("f", pointer(f)).unwrap();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let code = "f = direct(f)
            for i = 1, 150 do
                local code = f(nil, 0, nil, 0, i, 0, 0, 0, 0)
                assert(code == (i < 100 and 0 or -1))
                assert(i < 100 or text() == 'more than 100')
            end";
        let done = lua.load(code).exec();
        std::panic::set_hook(hook);
        done.unwrap();
    }
}
