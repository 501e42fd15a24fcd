// Fetches its arguments, each as a program would that knows nothing of where it runs; the last one fifty times at once.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func fetch(url string) string {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return err.Error()
	}
	if key := os.Getenv("API_KEY"); key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	answer, err := http.DefaultClient.Do(request)
	var unknown *net.DNSError
	switch {
	case errors.As(err, &unknown) && unknown.IsNotFound:
		return "no name"
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return "failed"
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err.Error()
	}
	return fmt.Sprint(answer.StatusCode)
}

func main() {
	urls := os.Args[1:]
	for _, url := range urls {
		fmt.Println(fetch(url))
	}
	same := make(chan bool)
	for i := 0; i < 50; i++ {
		go func() { same <- fetch(urls[len(urls)-1]) == "200" }()
	}
	all := true
	for i := 0; i < 50; i++ {
		all = <-same && all
	}
	fmt.Println(all)
}
