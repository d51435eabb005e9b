# frozen_string_literal: true

# More memory than there is gives an error, never the end of the process; a limit of addresses is a small machine.
RSpec.describe "Memory that is not there" do
  it "is refused under a limit of address space, and the process goes on" do
    script = <<~RUBY
      Process.setrlimit(Process::RLIMIT_AS, 6_000_000 * 1024)
      row = Candle::Tensor.ones([1, 2**16])
      calls = {
        zeros: -> { Candle::Tensor.zeros([2**31]) },
        ones: -> { Candle::Tensor.ones([2**31]) },
        rand: -> { Candle::Tensor.rand([2**31]) },
        randn: -> { Candle::Tensor.randn([2**31], dtype: :f16) },
        broadcast: -> { row + row.transpose(0, 1) },
        matmul: -> { row.transpose(0, 1).matmul(row) },
        copy: -> { row.broadcast_as([2**15, 2**16]).contiguous },
        cat: -> { Candle::Tensor.cat([row.broadcast_as([2**15, 2**16])] * 2, 0) },
        to_a: -> { row.broadcast_as([2**15, 2**16]).values }
      }
      calls.each do |name, call|
        call.call
        puts "\#{name} was granted"
      rescue Candle::OutOfMemoryError
        next
      end
      puts Candle::Tensor.ones([2, 3]).sum.item
    RUBY
    output, errors, status = run_ruby(script)
    expect([output, status.success?]).to eq(["6.0\n", true]), "#{output}\n#{errors}"
  end
end
