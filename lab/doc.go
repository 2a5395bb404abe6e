// Package lab contains what compares Stile with other libraries and puts it under faults. Its
// module has the dependencies that the library must not have: the libraries that bench measures and
// that the interoperation tests use, the clusters of torture, and the many clients of soak.
package lab
