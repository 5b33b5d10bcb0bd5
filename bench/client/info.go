package client

import (
	"context"
	"errors"
	"fmt"

	"kvferry/proxy/serverinfo"
)

// ServerInfo asks the server what it is. One that does not say, because it is not
// kvferry's, yields nil without an error.
func (c *Client) ServerInfo(ctx context.Context) (*serverinfo.Info, error) {
	const path = "/server_info"
	body, err := c.Get(ctx, path)
	if status := (*StatusError)(nil); errors.As(err, &status) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	info, err := serverinfo.Parse(body)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return info, nil
}
