package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// The version marks of credentials that are one string.
const (
	tokenPrefix = "sbt1" // of an embedded hub: sbt1.<role>.<zone>.<name>.<proof>
	userPrefix  = "sbt2" // of an operator: sbt2.<user JWT, three parts>.<seed>
)

// The tags of a user JWT that carry an identity. The JWT's name is the identity's name. The client chooses its subjects
// by them; what the hub enforces is the template of the key that signed.
const (
	TagRole     = "role:"
	TagZone     = "zone:"     // several for a harness; AllZones for one without limits
	TagOperator = "operator:" // the operator's OperatorMark, by which a refused client tells a foreign hub
)

// Credential is what a client shows to the hub: the token of an embedded hub, or a user JWT with its seed. Its zero
// value is no credential, with which a hub refuses everybody.
type Credential struct {
	id     Identity
	token  string          // of an embedded hub; empty for a JWT
	user   string          // the JWT
	seed   string          // of the JWT's key
	claims *jwt.UserClaims // of the JWT; not changed
}

// NewCredential is a token for an identity, with the proof that the issuer computed. The token's form is
// sbt1.<role>.<zone>.<name>.<proof>; a harness that is limited to zones has +<zone>+<zone>… in place of the zone.
func NewCredential(id Identity, proof string) (Credential, error) {
	if err := id.Check(); err != nil {
		return Credential{}, err
	}
	return Credential{id: id, token: join(tokenPrefix, string(id.Role), id.zonePart(), id.Name, proof)}, nil
}

func (i Identity) zonePart() string {
	if len(i.Zones) > 0 {
		return "+" + joinZones(i.Zones, "+")
	}
	return string(i.Zone)
}

// anonymousProof stands where the proof of a token would be.
const anonymousProof = "none"

// Anonymous is a credential that proves nothing: it names an identity to a hub that was told to believe everybody
// (InsecureNoAuth). Errors: an illegal name or role.
func Anonymous(id Identity) (Credential, error) { return NewCredential(id, anonymousProof) }

func (c Credential) isAnonymous() bool { return c.token != "" && c.Proof() == anonymousProof }

// NewUserCredential is a user JWT of an operator's hub, with the seed of its key. Errors wrap [ErrCredential]: the JWT
// is none or has a wrong signature, the seed is another's, the JWT carries no identity of ours.
func NewUserCredential(user, seed string) (Credential, error) {
	claims, err := jwt.DecodeUserClaims(user)
	if err != nil {
		return Credential{}, fmt.Errorf("%w: user JWT: %w", ErrCredential, err)
	}
	key, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return Credential{}, fmt.Errorf("%w: the seed is not readable", ErrCredential)
	}
	defer key.Wipe()
	if pub, err := key.PublicKey(); err != nil || pub != claims.Subject {
		return Credential{}, fmt.Errorf("%w: the seed is not that of the user JWT", ErrCredential)
	}
	id := identityOf(claims)
	if id.Role == "" {
		return Credential{}, fmt.Errorf("%w: the user JWT names no role; make one by \"sandbus auth issue\"", ErrCredential)
	}
	if err := id.Check(); err != nil {
		return Credential{}, fmt.Errorf("%w: user JWT: %w", ErrCredential, err)
	}
	return Credential{id: id, user: user, seed: seed, claims: claims}, nil
}

// MintedCredential is NewUserCredential for whoever has just signed the JWT of these claims, and need not check it.
func MintedCredential(claims *jwt.UserClaims, user, seed string) Credential {
	return Credential{id: identityOf(claims), user: user, seed: seed, claims: claims}
}

func identityOf(claims *jwt.UserClaims) Identity {
	id := Identity{Name: claims.Name, Zone: DefaultZone, Role: Role(tagOf(claims, TagRole))}
	for _, t := range claims.Tags {
		z, ok := strings.CutPrefix(t, TagZone)
		switch {
		case !ok || z == AllZones:
		case id.Role == RoleHarness:
			id.Zones = append(id.Zones, Zone(z))
		default:
			id.Zone = Zone(z)
		}
	}
	return id
}

func tagOf(claims *jwt.UserClaims, name string) string {
	for _, t := range claims.Tags {
		if v, ok := strings.CutPrefix(t, name); ok {
			return v
		}
	}
	return ""
}

// Tags are the tags of the user JWT that carries the identity; the JWT's name is the identity's.
func (i Identity) Tags() []string {
	tags := []string{TagRole + string(i.Role)}
	switch {
	case i.Role == RoleHarness && len(i.Zones) == 0:
		tags = append(tags, TagZone+AllZones)
	case i.Role == RoleHarness:
		for _, z := range i.Zones {
			tags = append(tags, TagZone+string(z))
		}
	default:
		tags = append(tags, TagZone+string(i.Zone))
	}
	return tags
}

// ErrCredential is a credential that has no readable form. Its text never contains the credential.
var ErrCredential = errors.New("not a sandbus credential")

// ParseCredential reads a credential: a token of one string of either kind, or the text of a NATS credentials file.
// Errors wrap [ErrCredential].
func ParseCredential(text string) (Credential, error) {
	text = strings.TrimSpace(text)
	t := strings.Split(text, ".")
	switch {
	case strings.HasPrefix(text, "-----BEGIN NATS USER JWT-----"):
		return parseUserFile([]byte(text))
	case t[0] == userPrefix && len(t) == 5:
		return NewUserCredential(join(t[1:4]...), t[4])
	case t[0] != tokenPrefix || len(t) != 5 || t[4] == "":
		return Credential{}, fmt.Errorf("%w: want %s.<role>.<zone>.<name>.<proof>, %s.<JWT>.<seed> or a NATS credentials file, got %d bytes in %d parts",
			ErrCredential, tokenPrefix, userPrefix, len(text), len(t))
	}
	id := Identity{Role: Role(t[1]), Zone: Zone(t[2]), Name: t[3]}
	if zones, ok := strings.CutPrefix(t[2], "+"); ok {
		id.Zone = DefaultZone
		for z := range strings.SplitSeq(zones, "+") {
			id.Zones = append(id.Zones, Zone(z))
		}
	}
	if err := id.Check(); err != nil {
		return Credential{}, fmt.Errorf("%w: %w", ErrCredential, err)
	}
	return Credential{id: id, token: text}, nil
}

func parseUserFile(text []byte) (Credential, error) {
	user, err := jwt.ParseDecoratedJWT(text)
	if err != nil {
		return Credential{}, fmt.Errorf("%w: credentials file: %w", ErrCredential, err)
	}
	key, err := jwt.ParseDecoratedUserNKey(text)
	if err != nil {
		return Credential{}, fmt.Errorf("%w: credentials file: the seed is not readable", ErrCredential)
	}
	defer key.Wipe()
	seed, err := key.Seed()
	if err != nil {
		return Credential{}, fmt.Errorf("%w: credentials file: the seed is not readable", ErrCredential)
	}
	return NewUserCredential(user, string(seed))
}

// maxCredentialFile bounds what is read of a credential file, in bytes.
const maxCredentialFile = 64 << 10

// LoadCredential reads a credential of either kind from a file. Errors name the file, and wrap [ErrCredential] or the
// system's error.
func LoadCredential(path string) (Credential, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Credential{}, fmt.Errorf("credential file: %w", err)
	}
	if !fi.Mode().IsRegular() || fi.Size() > maxCredentialFile {
		return Credential{}, fmt.Errorf("credential file %s: %w: want a regular file of at most %d bytes", path, ErrCredential, maxCredentialFile)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Credential{}, fmt.Errorf("credential file: %w", err)
	}
	c, err := ParseCredential(string(b))
	if err != nil {
		return Credential{}, fmt.Errorf("credential file %s: %w", path, err)
	}
	return c, nil
}

// WriteFile stores the credential for LoadCredential, readable by its owner only.
func (c Credential) WriteFile(path string, perm fs.FileMode) error {
	text, err := c.Text()
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, perm)
}

// Text is the secret as a file has it: for a user JWT a NATS credentials file, which other NATS clients read too; for a
// token the token. Errors: there is no credential.
func (c Credential) Text() ([]byte, error) {
	if c.IsZero() {
		return nil, fmt.Errorf("%w: it is empty", ErrCredential)
	}
	if c.user == "" {
		return []byte(c.token + "\n"), nil
	}
	return jwt.FormatUserConfig(c.user, []byte(c.seed))
}

// Identity is what the credential says of its holder. The hub checks it; the client uses it to choose its subjects.
func (c Credential) Identity() Identity { return c.id }

// IsZero says that there is no credential.
func (c Credential) IsZero() bool { return c.token == "" && c.user == "" }

// Token is the secret text as one string. It belongs into no log, no argument list and no child's environment.
func (c Credential) Token() string {
	if c.user != "" {
		return join(userPrefix, c.user, c.seed)
	}
	return c.token
}

// Proof is the issuer's part of the token of an embedded hub; empty for a user JWT.
func (c Credential) Proof() string { return c.token[strings.LastIndexByte(c.token, '.')+1:] }

// Details are what a user JWT says beside the identity. They are not secret.
type Details struct {
	Key      string    // the public key of the holder, by which a credential is revoked
	Account  string    // the account's public key
	Signer   string    // the key that signed: the role's
	Operator string    // the operator's mark, see OperatorMark
	Issued   time.Time // by the issuer's clock
	Expires  time.Time // zero for never; by the issuer's clock
}

// Details tells what a user JWT says. ok is false for the token of an embedded hub, which says no more than its identity.
func (c Credential) Details() (d Details, ok bool) {
	if c.claims == nil {
		return Details{}, false
	}
	d = Details{
		Key: c.claims.Subject, Account: c.claims.IssuerAccount, Signer: c.claims.Issuer,
		Operator: tagOf(c.claims, TagOperator), Issued: time.Unix(c.claims.IssuedAt, 0),
	}
	if c.claims.Expires != 0 {
		d.Expires = time.Unix(c.claims.Expires, 0)
	}
	return d, true
}

// Expires is when the credential ends, by its issuer's clock; zero for never.
func (c Credential) Expires() time.Time {
	d, _ := c.Details()
	return d.Expires
}

// OperatorMark is how an operator's public key is written into credentials and into the names of its servers: short,
// and enough to tell two operators apart.
func OperatorMark(publicKey string) string {
	return strings.ToLower(publicKey[:min(len(publicKey), operatorMarkLen)])
}

const operatorMarkLen = 13

// sign answers a hub's challenge with the key of the user JWT.
func (c Credential) sign(nonce []byte) ([]byte, error) {
	key, err := nkeys.FromSeed([]byte(c.seed))
	if err != nil {
		return nil, fmt.Errorf("%w: the seed is not readable", ErrCredential)
	}
	defer key.Wipe()
	return key.Sign(nonce)
}

// String hides the secret, so that a credential that is printed by mistake tells nothing.
func (c Credential) String() string { return c.id.String() + " (secret hidden)" }

// GoString hides the secret like String.
func (c Credential) GoString() string { return c.String() }
