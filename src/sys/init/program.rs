//! The first process of a container, as a static program of its own: an image needs no shell, no
//! `tail` and no C library for it.
//!
//! Without arguments it waits for `SIGTERM` (or `SIGINT`, `SIGQUIT`, `SIGHUP`) and collects the
//! processes whose parents are gone. With arguments it runs them as a program, passes every signal
//! on, collects the rest, and ends as the program did: with its code, or 128 and its signal.
//!
//! Compiled by `build.rs`, with nothing but `core` and system calls.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;
use core::ptr::null;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const WRITE: usize = 1;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const CLONE: usize = 56;
    pub const EXECVE: usize = 59;
    pub const WAIT4: usize = 61;
    pub const KILL: usize = 62;
    pub const SETPGID: usize = 109;
    pub const EXIT_GROUP: usize = 231;
}

#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod number {
    pub const WRITE: usize = 64;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const CLONE: usize = 220;
    pub const EXECVE: usize = 221;
    pub const WAIT4: usize = 260;
    pub const KILL: usize = 129;
    pub const SETPGID: usize = 154;
    pub const EXIT_GROUP: usize = 94;
}

#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "mov rdi, rsp", "and rsp, -16", "call {main}", "ud2", main = sym main);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x0, sp", "bl {main}", "brk #1", main = sym main);
#[cfg(target_arch = "riscv64")]
global_asm!(".globl _start", "_start:", "mv a0, sp", "andi sp, sp, -16", "call {main}", "ebreak", main = sym main);

/// Makes a system call; an error is a small negative number.
///
/// # Safety
///
/// What the call does with its arguments must be sound: pointers are valid for what it reads and
/// writes.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: a system call clobbers rcx and r11 and no other register; the rest is the caller's.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") 0, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// Makes a system call; an error is a small negative number.
///
/// # Safety
///
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: a system call clobbers x0 only; the rest is the caller's.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d,
            in("x4") 0, options(nostack));
    }
    result
}

/// Makes a system call; an error is a small negative number.
///
/// # Safety
///
/// As above.
#[cfg(target_arch = "riscv64")]
unsafe fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: a system call clobbers a0 only; the rest is the caller's.
    unsafe {
        asm!("ecall", in("a7") number, inlateout("a0") a => result, in("a1") b, in("a2") c, in("a3") d,
            in("a4") 0, options(nostack));
    }
    result
}

const SIG_BLOCK: usize = 0;
const SIG_SETMASK: usize = 2;
const SIGHUP: isize = 1;
const SIGINT: isize = 2;
const SIGQUIT: isize = 3;
const SIGTERM: isize = 15;
const SIGCHLD: isize = 17;
const WNOHANG: usize = 1;
const ENOENT: isize = -2;
const ENOTDIR: isize = -20;
const LONGEST_PATH: usize = 4096;
const SIGNAL_SET_BYTES: usize = 8;

type Strings = *const *const u8;

/// Takes what the kernel left on the stack: the number of arguments, the arguments, a null, the
/// environment, a null.
extern "C" fn main(stack: *const usize) -> ! {
    // SAFETY: this is the layout of the stack of a new program, and it stays for the whole life of
    // the process.
    let (arguments, environment) = unsafe {
        let count = *stack;
        let arguments = stack.add(1).cast::<*const u8>();
        (arguments.add(1), arguments.add(count + 1))
    };
    let all = u64::MAX;
    let mut before = 0_u64;
    // SAFETY: both sets are as large as said.
    unsafe {
        call(
            number::RT_SIGPROCMASK,
            SIG_BLOCK,
            &raw const all as usize,
            &raw mut before as usize,
            SIGNAL_SET_BYTES,
        );
    }
    // SAFETY: the list of arguments ends with a null.
    let child = if unsafe { *arguments }.is_null() {
        None
    } else {
        Some(spawn(arguments, environment, before))
    };
    loop {
        // SAFETY: waits for any signal and stores nothing.
        let signal = unsafe {
            call(number::RT_SIGTIMEDWAIT, &raw const all as usize, 0, 0, SIGNAL_SET_BYTES)
        };
        match (signal, child) {
            (SIGCHLD, _) => collect(child),
            (signal, Some(child)) if signal > 0 => {
                // SAFETY: has no pointers.
                unsafe { call(number::KILL, child as usize, signal as usize, 0, 0) };
            }
            (SIGTERM | SIGINT | SIGQUIT | SIGHUP, None) => exit(0),
            _ => {}
        }
    }
}

/// Starts the program with the signal mask that we were given, in a process group of its own.
fn spawn(arguments: Strings, environment: Strings, mask: u64) -> isize {
    // SAFETY: a clone with no flags but the signal is a fork: the child has its own copy of all.
    let child = unsafe { call(number::CLONE, SIGCHLD as usize, 0, 0, 0) };
    if child < 0 {
        fail(b"cannot make a process", 125);
    }
    if child == 0 {
        // SAFETY: has no pointers but a set as large as said.
        unsafe {
            call(number::SETPGID, 0, 0, 0, 0);
            call(
                number::RT_SIGPROCMASK,
                SIG_SETMASK,
                &raw const mask as usize,
                0,
                SIGNAL_SET_BYTES,
            );
        }
        execute(arguments, environment);
    }
    child
}

/// Becomes the program, looked for in `PATH` if its name has no slash.
fn execute(arguments: Strings, environment: Strings) -> ! {
    // SAFETY: the caller checked that there is a first argument; it ends with a zero.
    let name = unsafe { bytes(*arguments) };
    let mut error = ENOENT;
    if name.contains(&b'/') {
        error = execute_at(b"", name, arguments, environment);
    } else {
        let path = path(environment);
        for dir in path.split(|&byte| byte == b':') {
            let result =
                execute_at(if dir.is_empty() { b"." } else { dir }, name, arguments, environment);
            if result != ENOENT && result != ENOTDIR {
                error = result;
            }
        }
    }
    if error == ENOENT || error == ENOTDIR {
        report(name, b": executable file not found");
        exit(127);
    }
    report(name, b": cannot be executed");
    exit(126);
}

fn execute_at(dir: &[u8], name: &[u8], arguments: Strings, environment: Strings) -> isize {
    let mut file = [0_u8; LONGEST_PATH];
    let separator: &[u8] = if dir.is_empty() { b"" } else { b"/" };
    let mut length = 0;
    for part in [dir, separator, name] {
        for &byte in part {
            if length == LONGEST_PATH - 1 {
                return ENOENT;
            }
            file[length] = byte;
            length += 1;
        }
    }
    // SAFETY: the file name ends with a zero, both lists with a null.
    unsafe {
        call(number::EXECVE, file.as_ptr() as usize, arguments as usize, environment as usize, 0)
    }
}

/// Returns the value of `PATH`.
fn path(environment: Strings) -> &'static [u8] {
    let mut at = environment;
    // SAFETY: the list ends with a null, each of its strings with a zero.
    unsafe {
        while !(*at).is_null() {
            if let Some(path) = bytes(*at).strip_prefix(b"PATH=") {
                return path;
            }
            at = at.add(1);
        }
    }
    b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

/// Waits for all processes that ended, and ends as the child did if it is one of them.
fn collect(child: Option<isize>) {
    loop {
        let mut status = 0_i32;
        // SAFETY: stores one status.
        let ended =
            unsafe { call(number::WAIT4, usize::MAX, &raw mut status as usize, WNOHANG, 0) };
        if ended <= 0 {
            return;
        }
        if Some(ended) == child {
            let signal = status & 0x7f;
            exit(if signal == 0 { (status >> 8) & 0xff } else { 128 + signal });
        }
    }
}

/// Returns the bytes of a string that ends with a zero.
///
/// # Safety
///
/// There is a zero, and the string stays as it is.
unsafe fn bytes(string: *const u8) -> &'static [u8] {
    let mut length = 0;
    // SAFETY: the caller says that there is a zero.
    unsafe {
        // Volatile, lest this becomes a call of `strlen`.
        while string.add(length).read_volatile() != 0 {
            length += 1;
        }
        core::slice::from_raw_parts(string, length)
    }
}

fn report(what: &[u8], why: &[u8]) {
    for part in [what, why, b"\n"] {
        // SAFETY: reads as many bytes as said.
        unsafe { call(number::WRITE, 2, part.as_ptr() as usize, part.len(), 0) };
    }
}

fn fail(why: &[u8], code: i32) -> ! {
    report(b"init: ", why);
    exit(code)
}

fn exit(code: i32) -> ! {
    loop {
        // SAFETY: has no pointers.
        unsafe { call(number::EXIT_GROUP, code as usize, null::<u8>() as usize, 0, 0) };
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(125)
}

/// `core` was compiled with unwinding and names this; nothing here unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// The compiler puts calls of these where it copies or clears; there is no C library to have them.

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: the caller's areas are as large as it says. Volatile, lest this becomes a call of
        // itself.
        unsafe { to.add(at).write_volatile(*from.add(at)) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: as above.
        unsafe { to.add(at).write_volatile(byte as u8) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: as above.
        let (a, b) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}
