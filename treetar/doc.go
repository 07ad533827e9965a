// Package treetar carries a tree of files in a tar archive from one side of the bus to the other. Both sides use it, and
// neither trusts the other with more than the directory that it was given: all is done through os.Root.
//
// # What an archive holds
//
// Directories before their content, regular files and symbolic links, with permission bits and modification times to
// the nanosecond (PAX). The last record is a global header that tells what was left out.
//
// # What Extract refuses
//
// Names that are absolute, have "..", or are not the shortest form of a path; names below a symbolic link, whoever made
// the link; types other than the three; links that lead out of the tree. A link may climb with ".." at its beginning
// only and no higher than the root: then no combination of links leads out.
package treetar
