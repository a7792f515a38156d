//! Scopes: frames whose memory the compiler protects from use after the pop.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, needs_drop};
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use core::slice;

use super::{FrameLink, Mark, Stack, StackPolicy, Usual};
use crate::source::Source;
use crate::values;

/// A frame for allocations and for inner frames. Its allocations live for `'s`, until the frame is
/// popped.
///
/// The compiler rejects a use of popped memory:
///
/// ```compile_fail
/// # use pagewise_alloc::{Stack, source::Os};
/// let mut stack = Stack::new(Os);
/// let gone = stack.scope(|scope| scope.alloc(7));
/// ```
///
/// A frame cannot allocate while an inner frame is open, because the memory would belong to the
/// inner frame:
///
/// ```compile_fail
/// # use pagewise_alloc::{Stack, source::Os};
/// Stack::new(Os).scope(|outer| outer.scope(|_| _ = outer.alloc(7)));
/// ```
///
/// A frame cannot be used by another thread:
///
/// ```compile_fail
/// # use pagewise_alloc::{Stack, source::Os};
/// Stack::new(Os).scope(|scope| std::thread::scope(|threads| _ = threads.spawn(|| scope.alloc(7))));
/// ```
///
/// Popping a frame takes the same time for any content, because it runs no destructor. A value with
/// a destructor does not compile; [`Scope::owned`] accepts it:
///
/// ```compile_fail
/// # use pagewise_alloc::{Stack, source::Os};
/// Stack::new(Os).scope(|scope| _ = scope.alloc(String::from("lost")));
/// ```
pub struct Scope<'s, S: Source, P: StackPolicy = Usual> {
    stack: &'s Stack<S, P>,
    /// The frame of the scope, if [`StackPolicy::LINKED`]; else NULL.
    link: *const FrameLink,
    /// Makes `'s` invariant: with another lifetime, allocations could outlive the frame.
    only: PhantomData<fn(&'s ()) -> &'s ()>,
}

/// A frame that is popped when this value is dropped: for code that cannot use [`Stack::scope`].
///
/// ```
/// # use pagewise_alloc::{Stack, source::Os};
/// let mut stack = Stack::new(Os);
/// let mut frame = stack.frame();
/// let scope = frame.scope();
/// let (one, two) = (scope.alloc(1), scope.alloc(2));
/// assert_eq!(*one + *two, 3);
/// ```
#[derive(Debug)]
pub struct StackFrame<'f, S: Source, P: StackPolicy = Usual> {
    stack: &'f Stack<S, P>,
    mark: Mark,
}

impl<S: Source, P: StackPolicy> Stack<S, P> {
    /// Pushes a frame, runs `body` with it, and pops the frame, also when `body` panics.
    #[inline]
    pub fn scope<R>(&mut self, body: impl for<'s> FnOnce(&mut Scope<'s, S, P>) -> R) -> R {
        self.enter_scope(body)
    }

    /// Pushes a frame, which is popped when the returned value is dropped.
    #[inline]
    pub fn frame(&mut self) -> StackFrame<'_, S, P> {
        const { assert!(!P::LINKED, "a frame that moves cannot be linked") };
        StackFrame { mark: self.mark(), stack: self }
    }

    /// Pushes a frame, runs `body` with it, and pops the frame. Requires that the caller is the
    /// innermost scope, or that no scope borrows the stack.
    #[inline(always)]
    pub(super) fn enter_scope<R>(&self, body: impl for<'s> FnOnce(&mut Scope<'s, S, P>) -> R) -> R {
        let outer = if P::LINKED { self.frame.get() } else { ptr::null() };
        let open = OpenStackFrame { stack: self, link: FrameLink { mark: self.mark(), outer } };
        let link = if P::LINKED { &raw const open.link } else { ptr::null() };
        if P::LINKED {
            self.frame.set(link);
        }
        body(&mut Scope { stack: self, link, only: PhantomData })
    }
}

/// An open frame. Requires that the value does not move, because other frames may point to `link`.
struct OpenStackFrame<'f, S: Source, P: StackPolicy> {
    stack: &'f Stack<S, P>,
    link: FrameLink,
}

impl<S: Source, P: StackPolicy> Drop for OpenStackFrame<'_, S, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if P::LINKED {
            // SAFETY: allocations since the frame was pushed live at most as long as the scope,
            // which has ended.
            unsafe { self.stack.pop(&self.link) };
        } else {
            // SAFETY: the mark was made when the frame was pushed, and the borrow of the scope has
            // ended.
            unsafe { self.stack.rewind(self.link.mark) };
        }
    }
}

impl<S: Source, P: StackPolicy> Drop for StackFrame<'_, S, P> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the mark was made when the frame was pushed. Allocations since then live at most
        // as long as a borrow of this value.
        unsafe { self.stack.rewind(self.mark) };
    }
}

impl<S: Source, P: StackPolicy> StackFrame<'_, S, P> {
    /// Returns the scope of the frame, for allocations.
    #[inline]
    pub fn scope(&mut self) -> Scope<'_, S, P> {
        Scope { stack: self.stack, link: ptr::null(), only: PhantomData }
    }
}

impl<S: Source, P: StackPolicy> fmt::Debug for Scope<'_, S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("mark", &self.stack.mark()).finish_non_exhaustive()
    }
}

impl<'s, S: Source, P: StackPolicy> Scope<'s, S, P> {
    /// Pushes a frame inside this one, runs `body` with it, and pops the inner frame.
    #[inline]
    pub fn scope<R>(&mut self, body: impl for<'n> FnOnce(&mut Scope<'n, S, P>) -> R) -> R {
        self.assert_innermost();
        self.stack.enter_scope(body)
    }

    /// Pushes a frame inside this one, which is popped when the returned value is dropped.
    #[inline]
    pub fn frame(&mut self) -> StackFrame<'_, S, P> {
        const { assert!(!P::LINKED, "a frame that moves cannot be linked") };
        StackFrame { stack: self.stack, mark: self.stack.mark() }
    }

    /// Allocates memory that is valid until the frame is popped; `None` if the source is exhausted.
    ///
    /// # Panics
    /// Panics if the scope belongs to a thread's stack and a frame inside it is open.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.assert_innermost();
        self.stack.allocate(layout)
    }

    /// Resizes a block, see [`Stack::resize`].
    ///
    /// # Safety
    /// The block was allocated with `layout`, in this scope or in a scope around it. After a
    /// successful call it is used only through the returned pointer.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub unsafe fn resize(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        new: Layout,
    ) -> Option<NonNull<u8>> {
        self.assert_innermost();
        // SAFETY: the caller passes a block of this scope with this layout.
        unsafe { self.stack.resize(block, layout, new) }
    }

    /// Frees the last allocation, see [`Stack::free_last`].
    ///
    /// # Safety
    /// The block was allocated with `layout`, in this scope or in a scope around it, and is not
    /// used any more.
    #[inline]
    pub unsafe fn free_last(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a block of this scope with this layout, which is not used any
        // more.
        unsafe { self.stack.free_last(block, layout) }
    }

    /// Allocates memory for values of `T`.
    #[inline(always)]
    #[cfg_attr(debug_assertions, track_caller)]
    fn place<T>(&self, layout: Layout) -> Option<NonNull<T>> {
        self.assert_innermost();
        Some(self.stack.allocate_array(layout)?.cast())
    }

    /// True if no frame is open inside this one. Without links the compiler guarantees this.
    #[inline(always)]
    pub(super) fn is_innermost(&self) -> bool {
        // If the stack has left the frame's block, the pointer in the stack is tagged, so the first
        // two pointers differ although the frame is innermost.
        !P::LINKED
            || ptr::eq(self.stack.frame.get(), self.link)
            || ptr::eq(self.stack.innermost(), self.link)
    }

    #[inline(always)]
    fn assert_innermost(&self) {
        assert!(self.is_innermost(), "stack: a scope is used while another is open inside");
    }

    /// Moves a value into the frame; `None` if memory is exhausted.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_alloc<T>(&self, value: T) -> Option<&'s mut T> {
        const { assert!(!needs_drop::<T>(), "a frame runs no destructors: use `owned`") };
        let place = self.place::<T>(Layout::new::<T>())?;
        // SAFETY: the memory has the layout of a `T`, stays valid until the frame is popped, and is
        // not used by other code.
        Some(unsafe { values::put(place, value) })
    }

    /// Moves a value into the frame.
    ///
    /// # Panics
    /// Panics if memory is exhausted, and if [`Scope::allocate`] panics. The functions below panic
    /// in the same cases.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc<T>(&self, value: T) -> &'s mut T {
        self.try_alloc(value).unwrap_or_else(|| no_memory())
    }

    /// Moves a value into the frame. Dropping the returned handle drops the value.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn owned<T>(&self, value: T) -> Owned<'s, T> {
        let place = self.place::<T>(Layout::new::<T>()).unwrap_or_else(|| no_memory());
        // SAFETY: the memory has the layout of a `T`, stays valid until the frame is popped, and is
        // not used by other code.
        Owned(unsafe { values::put(place, value) })
    }

    /// Allocates a slice of `len` values; `value` returns the value for each index.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_slice_with<T>(&self, len: usize, value: impl FnMut(usize) -> T) -> &'s mut [T] {
        const { assert!(!needs_drop::<T>(), "a frame runs no destructors: use `owned`") };
        let layout = Layout::array::<T>(len).ok();
        let start = layout.and_then(|layout| self.place::<T>(layout));
        let start = start.unwrap_or_else(|| no_memory());
        // SAFETY: the memory has the layout of `len` values, stays valid until the frame is popped,
        // and is not used by other code.
        unsafe { values::make(start, len, value) }
    }

    /// Copies a slice into the frame.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_slice<T: Copy>(&self, values: &[T]) -> &'s mut [T] {
        let start = self.place::<T>(Layout::for_value(values)).unwrap_or_else(|| no_memory());
        // SAFETY: the memory is new, has the right layout, stays valid until the frame is popped,
        // and is not used by other code.
        unsafe { values::copy(start, values) }
    }

    /// Writes the output of `format!` into the frame.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_fmt(&self, text: fmt::Arguments<'_>) -> &'s mut str {
        let mut written = GrowingText { scope: self, text: self.alloc_slice(&[]) };
        fmt::Write::write_fmt(&mut written, text).unwrap_or_else(|_| no_memory());
        // SAFETY: the bytes are copies of parts of type `str`.
        unsafe { core::str::from_utf8_unchecked_mut(written.text) }
    }

    /// Copies a string into the frame.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn alloc_str(&self, text: &str) -> &'s mut str {
        let bytes = self.alloc_slice(text.as_bytes());
        // SAFETY: the bytes are a copy of a `str`.
        unsafe { core::str::from_utf8_unchecked_mut(bytes) }
    }
}

/// A text in a frame that grows in place while it is the last allocation.
struct GrowingText<'t, 's, S: Source, P: StackPolicy> {
    scope: &'t Scope<'s, S, P>,
    text: &'s mut [u8],
}

impl<S: Source, P: StackPolicy> fmt::Write for GrowingText<'_, '_, S, P> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let old = self.text.len();
        let size = old.checked_add(more.len()).ok_or(fmt::Error)?;
        let layout = Layout::array::<u8>(size).map_err(|_| fmt::Error)?;
        let start = NonNull::from(&mut *self.text).cast();
        // SAFETY: the text is a block of this stack, and its only borrow is not used any more.
        let grown = unsafe { self.scope.resize(start, Layout::for_value(self.text), layout) };
        let start = grown.ok_or(fmt::Error)?.as_ptr();
        // SAFETY: the new memory has space for both texts, and does not overlap `more`.
        unsafe { ptr::copy_nonoverlapping(more.as_ptr(), start.wrapping_add(old), more.len()) };
        // SAFETY: the memory is valid until the frame is popped, no other code uses it, and all of
        // it was written.
        self.text = unsafe { slice::from_raw_parts_mut(start, size) };
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn no_memory() -> ! {
    panic!("stack: the source has no more memory")
}

/// A value in a frame, whose destructor runs when this handle is dropped. The handle cannot outlive
/// the frame, so the destructor runs before the frame is popped. The memory of the value stays
/// until the frame is popped.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owned<'s, T: ?Sized>(&'s mut T);

impl<'s, T> Owned<'s, T> {
    /// Moves the value out of the frame, and returns it.
    pub fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        let value = &raw const *this.0;
        // SAFETY: the value was written when the handle was created, and is not dropped or used any
        // more.
        unsafe { value.read() }
    }

    /// Returns the value without running its destructor.
    pub fn leak(self) -> &'s mut T {
        let mut this = ManuallyDrop::new(self);
        let value = &raw mut *this.0;
        // SAFETY: the handle borrowed the value for `'s`, and was its only borrow.
        unsafe { &mut *value }
    }
}

impl<T: ?Sized> Deref for Owned<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: ?Sized> DerefMut for Owned<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0
    }
}

impl<T: ?Sized> Drop for Owned<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the value was written when the handle was created, and is dropped only here.
        unsafe { ptr::drop_in_place(self.0) };
    }
}
