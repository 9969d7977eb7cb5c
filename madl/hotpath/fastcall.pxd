# Methods written for CPython's vectorcall convention, in place of Cython's wrapper.
#
# That wrapper fills in defaults and counts references to each of them: 12 ns, where
# an allocation in all takes 40. A method that knows it is mostly called with one
# argument looks at the array of arguments itself.
from cpython.object cimport PyObject

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        PyObject* tp_dict
    ctypedef struct PyMethodDef:
        const char* ml_name
        void* ml_meth
        int ml_flags
        const char* ml_doc
    const int METH_FASTCALL
    const int METH_KEYWORDS
    object PyDescr_NewMethod(PyTypeObject* owner, PyMethodDef* method)
    void PyType_Modified(PyTypeObject* changed)


cdef inline int replace_method(
    type owner, PyMethodDef* method, const char* name, void* function, const char* doc
) except -1:
    # The arguments live as long as the type: it keeps the pointers. ``function`` is
    # ``object function(owner, PyObject** arguments, Py_ssize_t count, PyObject* names)``
    # with the names, if any, a tuple whose values follow the counted arguments.
    method.ml_name = name
    method.ml_meth = function
    method.ml_flags = METH_FASTCALL | METH_KEYWORDS
    method.ml_doc = doc
    descriptor = PyDescr_NewMethod(<PyTypeObject*>owner, method)
    (<dict><object>(<PyTypeObject*>owner).tp_dict)[name.decode()] = descriptor
    PyType_Modified(<PyTypeObject*>owner)
    return 0
