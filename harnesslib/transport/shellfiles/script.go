package shellfiles

import "strings"

// Function is a shell function that does an operation. Name is the function's; its text defines it, and all that it
// needs. It may run in a shell that lives on: it changes nothing but LC_ALL and variables and functions whose names begin
// with __sb_.
type Function struct {
	Name string
	Text string
}

// The exit codes of the functions; all others have their reason on the standard error.
const (
	codeNotFound = iota + 71
	codeExists
	codePermission
	codeIsDir
	codeNotDir
	codeNotRegular
	codeInvalid
	codeLoop
	codeUnsupported
	codeShort // fewer bytes than were sent
)

// gone says why a path is not there.
const gone = `
__sb_gone() {
__sb_p=$1
while :; do
case $__sb_p in */*) __sb_p=${__sb_p%/*}; [ -n "$__sb_p" ] || __sb_p=/ ;; *) __sb_p=. ;; esac
if [ -e "$__sb_p" ] || [ -L "$__sb_p" ]; then break; fi
done
[ -d "$__sb_p" ] || return 75
[ -x "$__sb_p" ] || return 73
return 71
}`

// regular lets only regular files through.
const regular = gone + `
__sb_regular() {
if [ -f "$1" ]; then [ -r "$1" ] || return 73
elif [ -d "$1" ]; then return 74
elif [ -e "$1" ]; then return 76
elif [ -L "$1" ]; then return 71
else __sb_gone "$1"; fi
}`

// target follows links to what a write replaces: __sb_t, in the directory __sb_d.
const target = gone + `
__sb_target() {
__sb_t=$1 __sb_n=0
while [ -L "$__sb_t" ]; do
__sb_n=$((__sb_n + 1))
[ "$__sb_n" -le 40 ] || return 78
__sb_l=$(readlink -n "$__sb_t" && printf x) || return 1
__sb_l=${__sb_l%x}
case $__sb_l in
/*) __sb_t=$__sb_l ;;
*) case $__sb_t in */*) __sb_t=${__sb_t%/*}/$__sb_l ;; *) __sb_t=./$__sb_l ;; esac ;;
esac
done
[ ! -d "$__sb_t" ] || return 74
if [ -e "$__sb_t" ] && [ ! -f "$__sb_t" ]; then return 76; fi
case $__sb_t in */*) __sb_d=${__sb_t%/*} ;; *) __sb_d=. ;; esac
[ -n "$__sb_d" ] || __sb_d=/
[ -d "$__sb_d" ] || __sb_gone "$__sb_t"
}`

// masked is a mode less the umask, in __sb_m; it says whether that is what comes of another mode.
const masked = `
__sb_masked() {
__sb_u=$(umask)
[ $((0$1 & ~0$__sb_u)) -eq $((0$2 & ~0$__sb_u)) ] && return
__sb_m=$(printf %o $((0$1 & ~0$__sb_u)))
return 1
}`

// place moves a new file to where it belongs: with mode and owner of what it replaces, else with a mode of its own.
const place = masked + `
__sb_place() {
if [ -f "$__sb_t" ]; then
__sb_old=$(stat -c '%a %u:%g' "$__sb_t") || return 79
__sb_new=$(stat -c '%a %u:%g' "$1") || return 79
if [ "$__sb_old" != "$__sb_new" ]; then
[ "${__sb_old#* }" = "${__sb_new#* }" ] || chown "${__sb_old#* }" "$1" 2>/dev/null || __sb_m=
chmod "${__sb_old%% *}" "$1" || return
fi
else
__sb_masked "$2" 666 || chmod "$__sb_m" "$1" || return
fi
mv -f "$1" "$__sb_t"
}`

// store writes small content: name, mode, the name of a temporary file, printf's format, and the content.
const store = target + place + `
__sb_store() {
__sb_target "$1" || return
printf "$4" "$5" >"$__sb_d/$3" && __sb_place "$__sb_d/$3" "$2" && return
__sb_s=$?
rm -f "$__sb_d/$3" 2>/dev/null
return "$__sb_s"
}`

const appendTo = target + masked + `
__sb_append() {
__sb_target "$1" || return
__sb_new=
[ -e "$__sb_t" ] || __sb_new=1
printf "$3" "$4" >>"$__sb_t" || return
[ -z "$__sb_new" ] || __sb_masked "$2" 666 || chmod "$__sb_m" "$__sb_t"
}`

// stage writes large content from the standard input to a temporary file, and says its size.
const stage = target + `
__sb_stage() {
__sb_target "$1" || return
cat >"$__sb_d/$2" && wc -c <"$__sb_d/$2" && return
__sb_s=$?
rm -f "$__sb_d/$2" 2>/dev/null
return "$__sb_s"
}`

const commit = target + place + `
__sb_commit() {
__sb_target "$1" || return
[ "$(($(wc -c <"$__sb_d/$3")))" = "$4" ] || return 80
__sb_place "$__sb_d/$3" "$2"
}`

const join = target + masked + `
__sb_join() {
__sb_target "$1" || return
[ "$(($(wc -c <"$__sb_d/$3")))" = "$4" ] || return 80
__sb_new=
[ -e "$__sb_t" ] || __sb_new=1
cat "$__sb_d/$3" >>"$__sb_t" || return
rm -f "$__sb_d/$3"
[ -z "$__sb_new" ] || __sb_masked "$2" 666 || chmod "$__sb_m" "$__sb_t"
}`

const discard = target + `
__sb_discard() {
__sb_target "$1" || return
rm -f "$__sb_d/$2"
}`

const read = regular + `
__sb_read() {
__sb_regular "$1" || return
cat "$1"
}`

const head = regular + `
__sb_head() {
__sb_regular "$1" || return
head -c "$2" "$1"
}`

const stat = gone + `
__sb_stat() {
if [ ! -e "$1" ]; then
if [ ! -L "$1" ]; then __sb_gone "$1"; return; fi
[ -z "$2" ] || return 71
fi
stat $2 -c '%f %s %Y %u %g %h %i %d' "$1" || return 79
if [ -L "$1" ] && [ -z "$2" ]; then readlink -n "$1"; fi
}`

// list prints a record for each entry behind a word that no name has in it.
const list = gone + `
__sb_list() {
if [ ! -d "$1" ]; then
if [ -e "$1" ]; then return 75; fi
if [ -L "$1" ]; then return 71; fi
__sb_gone "$1"
return
fi
if [ ! -r "$1" ] || [ ! -x "$1" ]; then return 73; fi
( cd "$1" || exit 73
__sb_w=$2
set -- ./* ./.[!.]* ./..?*
if command -v xargs >/dev/null 2>&1; then printf '%s\0' "$@" | xargs -0 stat -c "$__sb_w %f %s %Y %u %g %h %i %d %n"
else stat -c "$__sb_w %f %s %Y %u %g %h %i %d %n" "$@"; fi
stat -c %f . >/dev/null || exit 79
exit 0
) 2>/dev/null
}`

const makeDir = gone + masked + `
__sb_mkdir() {
if [ -d "$1" ]; then [ -n "$3" ] || return 72; return 0; fi
if [ -e "$1" ] || [ -L "$1" ]; then [ -z "$3" ] || return 75; return 72; fi
__sb_gone "$1"
__sb_s=$?
if [ "$__sb_s" != 71 ]; then return "$__sb_s"; fi
case $1 in */*) __sb_p=${1%/*} ;; *) __sb_p=. ;; esac
if [ -z "$3" ] && [ -n "$__sb_p" ] && [ ! -d "$__sb_p" ]; then return 71; fi
if __sb_masked "$2" 777; then mkdir $3 "$1"; else mkdir $3 -m "$__sb_m" "$1"; fi
}`

const remove = gone + `
__sb_remove() {
if [ -L "$1" ]; then rm -f "$1"
elif [ -d "$1" ]; then rmdir "$1"
elif [ -e "$1" ]; then rm -f "$1"
else __sb_gone "$1"; fi
}`

const removeAll = `
__sb_removeall() { rm -rf "$1"; }`

const rename = gone + `
__sb_rename() {
if [ ! -e "$1" ] && [ ! -L "$1" ]; then __sb_gone "$1"; return; fi
if [ -d "$2" ] && [ ! -L "$2" ]; then
if [ ! -d "$1" ] || [ -L "$1" ]; then return 72; fi
if [ "$1" -ef "$2" ]; then return 0; fi
rmdir "$2" || return
elif [ -d "$1" ] && [ ! -L "$1" ]; then
if [ -e "$2" ] || [ -L "$2" ]; then return 75; fi
elif [ -L "$2" ] && [ -d "$2" ]; then rm -f "$2" || return
elif [ ! -e "$2" ] && [ ! -L "$2" ]; then
__sb_gone "$2"
[ "$?" = 71 ] || return 75
fi
mv -f "$1" "$2"
}`

const chmod = gone + `
__sb_chmod() {
if [ ! -e "$1" ]; then [ ! -L "$1" ] || return 71; __sb_gone "$1"; return; fi
chmod "$2" "$1"
}`

const symlink = gone + `
__sb_symlink() {
if [ -e "$2" ] || [ -L "$2" ]; then return 72; fi
__sb_gone "$2"
__sb_s=$?
if [ "$__sb_s" != 71 ]; then return "$__sb_s"; fi
ln -s -- "$1" "$2"
}`

const readLink = gone + `
__sb_readlink() {
if [ -L "$1" ]; then readlink -n "$1"
elif [ -e "$1" ]; then return 77
else __sb_gone "$1"; fi
}`

const hash = regular + `
__sb_hash() {
__sb_regular "$1" || return
if command -v sha256sum >/dev/null 2>&1; then sha256sum <"$1"
elif command -v shasum >/dev/null 2>&1; then shasum -a 256 <"$1"
elif command -v openssl >/dev/null 2>&1; then openssl dgst -sha256 -r <"$1"
else return 79; fi
}`

// function makes one of its text, whose last definition is its own.
func function(text string) Function {
	name := text[:strings.LastIndex(text, "() {")]
	name = name[strings.LastIndexByte(name, '\n')+1:]
	return Function{name, "LC_ALL=C; export LC_ALL" + text}
}

var (
	fnRead, fnHead, fnStat, fnList          = function(read), function(head), function(stat), function(list)
	fnStore, fnAppend, fnStage              = function(store), function(appendTo), function(stage)
	fnCommit, fnJoin, fnDiscard             = function(commit), function(join), function(discard)
	fnMkdir, fnRemove, fnRemoveAll          = function(makeDir), function(remove), function(removeAll)
	fnRename, fnChmod, fnSymlink, fnReadLnk = function(rename), function(chmod), function(symlink), function(readLink)
	fnHash                                  = function(hash)
)
