//! Data types from debug information, reduced to the properties that the search for pointers needs:
//! sizes, and the offsets and target types of pointers.

use serde::{Deserialize, Serialize};

use crate::{AddrRange, Name};

/// Types of variables, and the types that are reachable from them by pointers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataTypes {
    /// All types. Other fields refer to them by index.
    pub types: Vec<DataType>,
    /// Variables that contain one of the requested addresses, in order of address. They do not
    /// overlap.
    pub variables: Vec<TypedVariable>,
    /// Thread-local variables. Each thread has its own copy.
    pub thread_locals: Vec<TypedThreadLocal>,
    /// Local variables of the active functions of threads. An uninitialized variable has an
    /// arbitrary value.
    pub locals: Vec<TypedVariable>,
    /// Names of requested classes, each with the index of its type.
    pub classes: Vec<(Name, u32)>,
    /// Files whose types are unknown, with the reasons.
    pub lacks: Vec<TypeLack>,
}

/// A file whose types are unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeLack {
    /// The file.
    pub module: Name,
    /// The reason, and the remedy.
    pub why: String,
}

/// A type.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataType {
    /// Name of the type: `item`, `char`, `item *`.
    pub name: Name,
    /// Size of an object in bytes.
    pub size: u64,
    /// Form of the type.
    pub form: DataForm,
    /// True if an object can be longer than its type because the last member is an array without a
    /// length.
    pub is_open_ended: bool,
    /// Index of the type of the first member or base class; `None` if the type is not a structure.
    pub first: Option<u32>,
    /// Pointers in an object, in order of offset.
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

/// A pointer in an object, or the pointers of an array in an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointerField {
    /// Offset of the first pointer in bytes.
    pub offset: u64,
    /// Number of pointers.
    pub count: u64,
    /// Distance between two neighboring pointers in bytes.
    pub stride: u64,
    /// The member, with the members that contain it: `head.next`.
    pub member: Name,
    /// Index of the type that the pointer points to; `None` if the type is unknown, `void` or a
    /// function.
    pub target: Option<u32>,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedVariable {
    /// Addresses of the variable.
    pub range: AddrRange,
    /// Name of the variable.
    pub name: Name,
    /// The program or library that contains the variable.
    pub module: Name,
    /// The source file that declares the variable.
    pub source: Option<Name>,
    /// Index of the variable's type.
    pub data_type: u32,
}

/// A thread-local variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypedThreadLocal {
    /// Location of the file's thread-local storage.
    pub storage: ThreadStorage,
    /// The variable. Its addresses are offsets in the file's thread-local storage.
    pub variable: TypedVariable,
}

/// Location of the thread-local storage (TLS) of a file (a program or library) in each thread (on
/// x86-64).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadStorage {
    /// The TLS of the program itself, which begins this number of bytes below the thread pointer.
    BelowThreadPointer(u64),
    /// A word in memory contains the offset of a variable from the thread pointer.
    OfVariable {
        /// Address of the word.
        word: u64,
        /// Offset of this variable in the TLS of the file.
        offset: u64,
    },
    /// A word in memory contains the module ID of the file: the index of its TLS in the dynamic
    /// thread vector (DTV) of each thread.
    Numbered {
        /// Address of the word.
        word: u64,
    },
}
