/* One round of packets on a full mesh, turn by turn; packets.py has the same for all pairs of a step at once. */

#include <math.h>
#include <stdint.h>

#define LAYOUT 1

int32_t tracelens_layout(void) { return LAYOUT; }

/* Of each way (0, 1) and pair: who sends (who receives is the ``ends`` of the other way) and ``rest``, the bytes left.
 * Of each way, link and pair: bytes ``used`` and packets. Of each pair its links' rate; of each rank its NIC's room. */
typedef struct {
    int64_t pairs, links;
    double packet_bytes, packets_per_turn;
    const int64_t *ends;
    const double *rate;
    double *rest, *used, *packets, *to_send, *to_receive;
} Mesh;

static double lesser(double one, double other) { return one < other ? one : other; }

/* As many full packets as the turn, the NICs and the links allow, each on the lowest link with room; if those were all,
 * then what is left. Links that carry packets of the other way are taken. Whether any packet was sent. */
static int turn(const Mesh *m, int64_t way, int64_t pair) {
    const int64_t sender = m->ends[way * m->pairs + pair], receiver = m->ends[(1 - way) * m->pairs + pair];
    const int64_t first = way * m->links * m->pairs + pair, back = (1 - way) * m->links * m->pairs + pair;
    const int64_t beyond = m->links * m->pairs;
    const double size = m->packet_bytes, rate = m->rate[pair];
    const double room = lesser(m->to_send[sender], m->to_receive[receiver]);
    double *rest = &m->rest[way * m->pairs + pair], whole, wanted, left, tail, moved;
    int64_t link;
    if (*rest <= 0 || lesser(*rest, size) > room) return 0;
    whole = floor(*rest / size);
    wanted = left = lesser(lesser(whole, m->packets_per_turn), floor(room / size));
    for (link = 0; link < beyond && left > 0; link += m->pairs) {
        double placed;
        if (m->packets[back + link] > 0) continue;
        placed = lesser(left, floor((rate - m->used[first + link]) / size));
        m->used[first + link] += placed * size;
        m->packets[first + link] += placed;
        left -= placed;
    }
    moved = (wanted - left) * size;
    tail = *rest - moved;
    if (wanted - left == whole && whole < m->packets_per_turn && tail > 0 && tail <= room - moved)
        for (link = 0; link < beyond; link += m->pairs) {
            if (m->packets[back + link] > 0 || m->used[first + link] + tail > rate) continue;
            m->used[first + link] += tail;
            m->packets[first + link] += 1;
            moved += tail;
            break;
        }
    *rest -= moved;
    m->to_send[sender] -= moved;
    m->to_receive[receiver] -= moved;
    return moved > 0;
}

/* Passes until none can send. Of a pass the first half is ``first_way`` with rising steps, the other falls. */
void tracelens_round(const Mesh *m, int64_t first_way) {
    int is_moving = 1;
    while (is_moving) {
        int64_t i;
        is_moving = 0;
        for (i = 0; i < m->pairs; i++) is_moving |= turn(m, first_way, i);
        for (i = m->pairs - 1; i >= 0; i--) is_moving |= turn(m, 1 - first_way, i);
    }
}
