// A Kubernetes control plane in one binary: its first argument, or the name it is called by, says which part to be.
package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

const startLimit = 60 * time.Second

// parts makes each part's command. kubectl reads os.Args when it is made, so nothing is made before it is asked for.
var parts = map[string]func() *cobra.Command{
	"etcd":               etcdCommand,
	"apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
	"controller-manager": func() *cobra.Command { return manager.NewControllerManagerCommand() },
	"scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubectl":            func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
}

func main() {
	part := filepath.Base(os.Args[0])
	if _, known := parts[part]; !known && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		part = os.Args[0]
	}
	command, known := parts[part]
	if !known {
		fmt.Fprintln(os.Stderr, "usage: controlplane etcd|apiserver|controller-manager|scheduler|kubectl ARGUMENTS")
		os.Exit(2)
	}
	if part == "kubectl" { // prints its errors as users know them
		util.CheckErr(cli.RunNoErrOutput(command()))
		return
	}
	os.Exit(cli.Run(command()))
}

// etcdCommand is one etcd member for one test run: nothing is synced to disk.
func etcdCommand() *cobra.Command {
	var folder, client, peer string
	command := &cobra.Command{
		Use:           "etcd",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(*cobra.Command, []string) error { return serveEtcd(folder, client, peer) },
	}
	command.Flags().StringVar(&folder, "data-dir", "", "where the data is kept")
	command.Flags().StringVar(&client, "client-url", "http://127.0.0.1:2379", "where clients connect")
	command.Flags().StringVar(&peer, "peer-url", "http://127.0.0.1:2380", "where other members would connect")
	return command
}

func serveEtcd(folder, client, peer string) error {
	clientURL, err := url.Parse(client)
	if err != nil {
		return err
	}
	peerURL, err := url.Parse(peer)
	if err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Dir = folder
	config.UnsafeNoFsync = true
	config.LogLevel = "warn"
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*clientURL}, []url.URL{*clientURL}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peerURL}, []url.URL{*peerURL}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
		return <-server.Err()
	case <-time.After(startLimit):
		return fmt.Errorf("etcd took more than %v to start", startLimit)
	}
}
