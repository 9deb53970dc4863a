//! LuaJIT for the scripts of a configuration: a VM with all libraries, and C functions that scripts
//! expect in the program.

use std::hint::black_box;
use std::slice;

use mlua::{Lua, LuaOptions, StdLib};

pub mod direct;

/// A VM with all libraries of LuaJIT. With `ffi`, `debug` and C modules, a script can read and
/// write any memory of the process.
///
/// The caller promises that the VM runs only scripts of the configuration. Their author is the
/// administrator, as with OpenResty, and is trusted like the author of a module for `load_module`.
/// The VM must never compile anything that a client, an upstream or another user sends.
/// `clippy.toml` bans this function, so each caller states its reason.
#[must_use]
pub fn vm_without_restrictions() -> Lua {
    // Keeps the linker from removing the functions.
    black_box((ngx_hex_dump as *const (), ngx_atoi as *const ()));
    // SAFETY: mlua's own code stays sound as long as scripts do not write to memory that is not theirs. Only `ffi`, `debug`
    // and C modules can do that. The caller promises that all scripts are the administrator's, and the administrator
    // answers for them as for the program itself.
    unsafe { Lua::unsafe_new_with(StdLib::ALL, LuaOptions::new()) }
}

/// nginx's function of this name, which `resty.string` calls through `ffi`: writes `len` bytes as hexadecimal digits, and
/// returns the end of what it wrote.
///
/// # Safety
///
/// `src` has `len` bytes, and `dst` has room for twice as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ngx_hex_dump(dst: *mut u8, src: *const u8, len: usize) -> *mut u8 {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut at = dst;
    for i in 0..len {
        // SAFETY: `i` is below `len`, and two bytes of `dst` are written for each of `src`, as the caller promises.
        unsafe {
            let byte = src.add(i).read();
            at.write(DIGITS[usize::from(byte >> 4)]);
            at.add(1).write(DIGITS[usize::from(byte & 15)]);
            at = at.add(2);
        }
    }
    at
}

/// nginx's function of this name, which `resty.string` calls through `ffi`: the number that `n` digits stand for, or -1.
///
/// # Safety
///
/// `line` has `n` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ngx_atoi(line: *const u8, n: usize) -> isize {
    if line.is_null() || n == 0 {
        return -1;
    }
    // SAFETY: not null, and the caller promises `n` bytes.
    number(unsafe { slice::from_raw_parts(line, n) }).unwrap_or(-1)
}

fn number(digits: &[u8]) -> Option<isize> {
    digits.iter().try_fold(0_isize, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| isize::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
