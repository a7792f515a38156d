//! Types of data as debug information describes them, reduced to the data that the search for
//! pointers needs: sizes, and the offsets and target types of pointers.

use serde::{Deserialize, Serialize};

use crate::{AddrRange, Name};

/// Types of variables, and the types that pointers lead to from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataTypes {
    /// All types.
    pub types: Vec<DataType>,
    /// Variables that contain a wanted address, in order of address. They do not overlap.
    pub variables: Vec<TypedVariable>,
    /// Thread-local variables, of which each thread has its own.
    pub thread_locals: Vec<TypedThreadLocal>,
    /// Local variables of the active functions of threads. An uninitialized variable has an
    /// arbitrary value.
    pub locals: Vec<TypedVariable>,
    /// Classes that were asked for by name, and the index of their type.
    pub classes: Vec<(Name, u32)>,
    /// Files without types, and the reason.
    pub lacks: Vec<TypeLack>,
}

/// A file whose types are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeLack {
    /// The file.
    pub module: Name,
    /// The reason, and what to do.
    pub why: String,
}

/// A type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataType {
    /// Its name: `item`, `char`, `item *`.
    pub name: Name,
    /// Bytes of an object.
    pub size: u64,
    /// Form of the type.
    pub form: DataForm,
    /// True if an object can be longer than its type: the last member is an array without a length.
    pub is_open_ended: bool,
    /// Type of the first member or base class, if it is a structure.
    pub first: Option<u32>,
    /// Pointers in an object, in order of their offset.
    pub pointers: Vec<PointerField>,
}

/// Form of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataForm {
    /// A number, a character, an enumeration.
    #[default]
    Scalar,
    /// A pointer.
    Pointer,
    /// A structure or class.
    Structure,
    /// An array of known length.
    Array,
}

/// Pointers in an object: one, or those of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointerField {
    /// Offset of the first.
    pub offset: u64,
    /// Number of pointers.
    pub count: u64,
    /// Distance between two neighboring pointers in bytes.
    pub stride: u64,
    /// The member, with the members that contain it: `head.next`.
    pub member: Name,
    /// Index of the type that it points to; `None` if the type is unknown, `void` or a function.
    pub target: Option<u32>,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedVariable {
    /// Its addresses.
    pub range: AddrRange,
    /// Its name.
    pub name: Name,
    /// The file that contains it.
    pub module: Name,
    /// The source file that declares it.
    pub source: Option<Name>,
    /// Index of its type.
    pub data_type: u32,
}

/// A thread-local variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedThreadLocal {
    /// Location of the storage of its file.
    pub storage: ThreadStorage,
    /// The variable; its addresses are offsets in this storage.
    pub variable: TypedVariable,
}

/// Location of the thread-local storage of a file in each thread (on x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadStorage {
    /// It begins this number of bytes below the thread pointer: the storage of the program.
    BelowThreadPointer(u64),
    /// The word at an address is the offset of a variable from the thread pointer.
    OfVariable {
        /// The address of the word.
        word: u64,
        /// The offset of this variable in the storage.
        offset: u64,
    },
    /// The word at an address is the module ID of the file, its index in the dynamic thread vector
    /// (DTV) of each thread.
    Numbered {
        /// The address of the word.
        word: u64,
    },
}
