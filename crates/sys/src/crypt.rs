//! Password hashes by the C library's methods: DES, MD5, SHA, bcrypt, yescrypt. crypt(3).

use std::ffi::{CStr, CString, c_char};

/// The size of libcrypt's `struct crypt_data`, which its ABI fixes: the larger one of glibc's and
/// libxcrypt's.
const DATA: usize = 128 * 1024 + 272;

/// The working memory of `crypt_r`, whose content is internal to libcrypt.
#[repr(C, align(16))]
struct Data([u8; DATA]);

// musl has it in the C library itself.
#[cfg_attr(not(target_env = "musl"), link(name = "crypt"))]
unsafe extern "C" {
    fn crypt_r(key: *const c_char, setting: *const c_char, data: *mut Data) -> *mut c_char;
}

/// The hash of `key` by the method, cost and salt at the beginning of `setting`, which may be an
/// existing hash. It may take long, as such methods are meant to.
///
/// `None` if the setting names no method or a text has a NUL. For an unknown method, libcrypt may
/// also return a text that never equals the setting.
pub fn crypt(key: &[u8], setting: &[u8]) -> Option<Vec<u8>> {
    let (key, setting) = (CString::new(key).ok()?, CString::new(setting).ok()?);
    // On the heap, since threads have small stacks. Zeroed, as the first call requires.
    let mut memory = vec![0u8; size_of::<Data>() + align_of::<Data>()];
    let skip = memory.as_ptr().align_offset(align_of::<Data>());
    let data: *mut Data = memory.get_mut(skip..)?.as_mut_ptr().cast();
    // SAFETY: both texts end with NUL and outlive the call; `data` is aligned, zeroed, and has room
    // for libcrypt's structure behind it, and no other code uses it.
    let hash = unsafe { crypt_r(key.as_ptr(), setting.as_ptr(), data) };
    if hash.is_null() {
        return None;
    }
    // SAFETY: not null, it is a text inside `memory`, which is still there.
    Some(unsafe { CStr::from_ptr(hash) }.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        let des = crypt(b"password", b"ab").unwrap();
        assert_eq!(des, b"abJnggxhB/yWI");
        let sha = b"$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5";
        assert_eq!(crypt(b"Hello world!", sha).unwrap(), sha);
        assert_ne!(crypt(b"hello world!", sha).unwrap(), sha);
    }

    #[test]
    fn what_is_no_setting_has_no_hash_that_equals_it() {
        assert_ne!(crypt(b"x", b"$no$such").as_deref(), Some(&b"$no$such"[..]));
        assert_ne!(crypt(b"x", b"*0").as_deref(), Some(&b"*0"[..]));
        assert_eq!(crypt(b"x\0y", b"ab"), None);
    }
}
