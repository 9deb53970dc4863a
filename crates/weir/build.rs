//! Modules in C that scripts load find Lua's functions in the program itself. Scripts find the functions of nginx that
//! `weir_sys::lua` has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for names in ["lua_*", "luaL_*", "ngx_hex_dump", "ngx_atoi"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={names}");
    }
}
